-- The role that owns the tables and the role that captures them. psql reads the passwords itself, so that they stand in
-- no argument. cdcflow is a member of the owner because only an owner may publish a table.
\set shop `cat /secrets/postgres-shop`
\set capture `cat /secrets/postgres-capture`
CREATE ROLE shop LOGIN PASSWORD :'shop';
ALTER DATABASE airports OWNER TO shop;
CREATE ROLE cdcflow LOGIN REPLICATION PASSWORD :'capture';
GRANT shop TO cdcflow;
