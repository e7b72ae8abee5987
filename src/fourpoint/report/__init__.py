"""Results as text, tables and HTML pages, made of figures and tables."""
