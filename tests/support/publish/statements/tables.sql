CREATE EXTENSION hstore;
CREATE EXTENSION citext;
CREATE EXTENSION ltree;
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE v (id int PRIMARY KEY,
b bool, i2 int2, i4 int4, i8 int8, o oid, f4 float4, f8 float8, n numeric(10,2), w numeric(60,30), tiny numeric(5,5),
nn numeric, t text, vc varchar(5), c char(5), qc "char", y bytea, d date, ts timestamp, ts3 timestamp(3), ts0 timestamp(0),
tz timestamptz, tz3 timestamptz(3), tz0 timestamptz(0), ti time, ti3 time(3), tt timetz, iv interval, u uuid, js json,
j jsonb, b1 bit(1), b12 bit(12), vb varbit, vb5 varbit(5), m money, dom positive, inet inet, cidr cidr, mac macaddr,
mac8 macaddr8, i4r int4range, i8r int8range, nr numrange, tsr tsrange, tzr tstzrange, dr daterange, tv tsvector, pt point,
hs hstore, ci citext, lt ltree, ia int4[], i8a int8[], ta text[], na numeric(10,2)[], tsa timestamp[], tza timestamptz[],
da date[], ua uuid[], ba bool[], ja jsonb[], fa float8[]
);
CREATE TABLE r (id int PRIMARY KEY,
b bool NOT NULL, i2 int2 NOT NULL, i4 int4 NOT NULL, i8 int8 NOT NULL, o oid NOT NULL, f4 float4 NOT NULL, f8 float8 NOT NULL, n numeric(10,2) NOT NULL, w numeric(60,30) NOT NULL, tiny numeric(5,5) NOT NULL,
nn numeric NOT NULL, t text NOT NULL, vc varchar(5) NOT NULL, c char(5) NOT NULL, qc "char" NOT NULL, y bytea NOT NULL, d date NOT NULL, ts timestamp NOT NULL, ts3 timestamp(3) NOT NULL, ts0 timestamp(0) NOT NULL,
tz timestamptz NOT NULL, tz3 timestamptz(3) NOT NULL, tz0 timestamptz(0) NOT NULL, ti time NOT NULL, ti3 time(3) NOT NULL, tt timetz NOT NULL, iv interval NOT NULL, u uuid NOT NULL, js json NOT NULL,
j jsonb NOT NULL, b1 bit(1) NOT NULL, b12 bit(12) NOT NULL, vb varbit NOT NULL, vb5 varbit(5) NOT NULL, m money NOT NULL, dom positive NOT NULL, inet inet NOT NULL, cidr cidr NOT NULL, mac macaddr NOT NULL,
mac8 macaddr8 NOT NULL, i4r int4range NOT NULL, i8r int8range NOT NULL, nr numrange NOT NULL, tsr tsrange NOT NULL, tzr tstzrange NOT NULL, dr daterange NOT NULL, tv tsvector NOT NULL, pt point NOT NULL,
hs hstore NOT NULL, ci citext NOT NULL, lt ltree NOT NULL, ia int4[] NOT NULL, i8a int8[] NOT NULL, ta text[] NOT NULL, na numeric(10,2)[] NOT NULL, tsa timestamp[] NOT NULL, tza timestamptz[] NOT NULL,
da date[] NOT NULL, ua uuid[] NOT NULL, ba bool[] NOT NULL, ja jsonb[] NOT NULL, fa float8[] NOT NULL
 NOT NULL);
CREATE TABLE k (a int, b text, v text NOT NULL, big text, bigb bytea, biga text[], bigj jsonb, bigi int[], bign numeric, m int NOT NULL, PRIMARY KEY (a, b));
ALTER TABLE k ALTER big SET STORAGE EXTERNAL, ALTER bigb SET STORAGE EXTERNAL, ALTER biga SET STORAGE EXTERNAL, ALTER bigj SET STORAGE EXTERNAL, ALTER bigi SET STORAGE EXTERNAL, ALTER bign SET STORAGE EXTERNAL;
CREATE TABLE f (id int PRIMARY KEY, v text);
ALTER TABLE f REPLICA IDENTITY FULL;
CREATE TABLE "Odd name" ("a-b" int PRIMARY KEY, "Ünï" text, e mood, def int DEFAULT 7, nm name, bx box, mr int4multirange, lsn pg_lsn);
CREATE TABLE finished (id int PRIMARY KEY);
