"""`python -m keras_transformer_runtime` is the command `keras-transformer`."""

from keras_transformer_runtime.command import main

if __name__ == "__main__":
    main()
