"""The display of results in pages, notebooks, terminals, LaTeX and pictures, from lines of coloured pieces of text."""
