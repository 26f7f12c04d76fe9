"""What retrieval is measured with: made-up pages, questions about them, words heard wrong."""
