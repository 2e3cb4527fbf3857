"""The activations of CTranslate2 by the numbers that it stores for them."""

import keras

# As in the enum `Activation` of ctranslate2.specs.common_spec, which is not imported: a
# model of CTranslate2 is read without that package.
ACTIVATIONS = {
    keras.activations.relu: 0,
    keras.activations.gelu: 3,
    keras.activations.silu: 2,
    keras.activations.tanh: 5,
    keras.activations.sigmoid: 6,
}
