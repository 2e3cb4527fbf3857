"""`python -m keras_transformer` is the command `keras-transformer`.

It imports the package first, and with it Keras. `keras-transformer` and `python -m
keras_transformer_runtime` answer `--help` and wrong options without Keras.
"""

from keras_transformer_runtime.command import main

if __name__ == "__main__":
    main()
