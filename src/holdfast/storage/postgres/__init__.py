"""The store on PostgreSQL, for several servers. Imported only when a connection string is given."""
