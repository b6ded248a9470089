"""One module per benchmark or pair of them; light to import, so that they list fast."""
