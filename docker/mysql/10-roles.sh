# The user that owns the tables and the user that captures them. The image's own start sources this file.
# shop says per session how much of a row its changes log, as an application may, and needs a right for that.
docker_process_sql <<SQL
CREATE USER shop@'%' IDENTIFIED BY '$(cat /secrets/mysql-shop)' REQUIRE SSL;
GRANT ALL PRIVILEGES ON airports.* TO shop@'%';
GRANT SESSION_VARIABLES_ADMIN ON *.* TO shop@'%';
CREATE USER cdcflow@'%' IDENTIFIED BY '$(cat /secrets/mysql-capture)' REQUIRE SSL;
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO cdcflow@'%';
GRANT SELECT ON airports.* TO cdcflow@'%';
GRANT CREATE, SELECT, INSERT, UPDATE ON cdcflow.* TO cdcflow@'%';
SQL
