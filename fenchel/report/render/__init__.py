"""Reports as tables, pages, pictures and traces."""
