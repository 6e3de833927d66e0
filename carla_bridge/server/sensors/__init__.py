"""What sensors measure, when, and the bytes it is sent as; cameras are in `rendering`."""
