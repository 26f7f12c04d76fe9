"""What every benchmark does the same way: command line, bars, result files, random models."""
