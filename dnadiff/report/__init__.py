"""Pages and pictures: `page` fills the templates and draws figures; the others are the pages."""
