"""One file per source: a finished step becomes scalars."""
