"""Text: documents, the Hugging Face Hub, tokenizers, packing, streaming, and the text data
module."""
