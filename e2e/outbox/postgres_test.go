//go:build unix

package outbox

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

var withPostgres = flag.Bool("postgres", false, "test on PostgreSQL as well: that of POSTGRES_URI, or one that is started here")

// startPostgres returns the address of a PostgreSQL, and what ends it.
func startPostgres(ctx context.Context) (uri string, stop func(), err error) {
	if uri := os.Getenv("POSTGRES_URI"); uri != "" {
		return uri, func() {}, nil
	}
	initdb, err := postgresBinary("initdb")
	if err != nil {
		return "", nil, err
	}
	server, err := postgresBinary("postgres")
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "outbox-postgres-")
	if err != nil {
		return "", nil, err
	}
	remove := func() { _ = os.RemoveAll(dir) }
	as, err := unprivileged(dir)
	if err != nil {
		remove()
		return "", nil, err
	}
	data := filepath.Join(dir, "data")
	cmd := exec.CommandContext(ctx, initdb, "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
	cmd.SysProcAttr, cmd.Dir = as, dir
	if out, err := cmd.CombinedOutput(); err != nil {
		remove()
		return "", nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	port, err := freePort(ctx)
	if err != nil {
		remove()
		return "", nil, err
	}
	var said bytes.Buffer
	cmd = exec.Command(server, "-D", data, "-h", "127.0.0.1", "-p", port, "-k", dir, "-c", "fsync=off", "-c", "max_connections=200")
	cmd.SysProcAttr, cmd.Dir, cmd.Stderr = as, dir, &said
	if err := cmd.Start(); err != nil {
		remove()
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // a fast shutdown
		_ = cmd.Wait()
		remove()
	}
	uri = "postgres://postgres@127.0.0.1:" + port + "/postgres?sslmode=disable"
	if err := answers(ctx, uri); err != nil {
		stop()
		return "", nil, fmt.Errorf("postgres: %w: %s", err, said.String())
	}
	return uri, stop, nil
}

// postgresBinary finds a program of PostgreSQL on PATH, or where Debian has it.
func postgresBinary(name string) (string, error) {
	if found, err := exec.LookPath(name); err == nil {
		return found, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("no %s on PATH or in /usr/lib/postgresql/*/bin: install PostgreSQL, or set POSTGRES_URI", name)
	}
	return found[len(found)-1], nil
}

// unprivileged gives a folder to a user that PostgreSQL runs as, which is not root.
func unprivileged(dir string) (*syscall.SysProcAttr, error) {
	if os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // as ourselves
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(uidErr, gidErr, os.Chown(dir, int(uid), int(gid))); err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

func freePort(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// answers waits until a database answers.
func answers(ctx context.Context, uri string) error {
	db, err := sql.Open("pgx", uri)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := db.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}
