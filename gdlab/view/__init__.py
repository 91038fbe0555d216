"""Views of every stage: documents, layouts, pictures, text twins, and questions to a document."""
