package main

import _ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx" of jetbus outbox
