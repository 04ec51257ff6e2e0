"""Pages and pictures: `page` fills the templates and draws figures; `run`, `suite`, `designs` and `heat_map` are the pages."""
