package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Cluster is a private PostgreSQL that lives as long as the measurement. Commits
// are durable: fsync and synchronous_commit keep their defaults.
type Cluster struct {
	// URL of its database "postgres".
	URL        string
	Postmaster int

	dir string
	cmd *exec.Cmd
}

// StartCluster makes and starts a cluster with the system's newest binaries, on a
// unix socket. As root it runs as "postgres" or "nobody". Settings are
// "name=value". Stop removes its files.
func StartCluster(ctx context.Context, settings []string) (*Cluster, error) {
	return startCluster(ctx, settings, "initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
}

// StartStandby makes a copy of the cluster and starts it as a streaming standby.
func (c *Cluster) StartStandby(ctx context.Context, settings []string) (*Cluster, error) {
	return startCluster(ctx, settings, "pg_basebackup", "-h", c.dir, "-U", "postgres", "-R", "-X", "stream", "-c", "fast", "--no-sync")
}

// startCluster starts the cluster that a program has made in the folder of its option -D.
func startCluster(ctx context.Context, settings []string, program string, options ...string) (*Cluster, error) {
	bin, err := postgresBinaries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kiln-bench-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	attr := &syscall.SysProcAttr{Setpgid: true}
	owner := ""
	if os.Getuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			if u, err = user.Lookup("nobody"); err != nil {
				return nil, fmt.Errorf("PostgreSQL does not run as root and there is neither a user postgres nor nobody: %w", err)
			}
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, uid, gid); err != nil {
			return nil, err
		}
		owner = u.Username
	}
	data := filepath.Join(dir, "data")
	maker := exec.CommandContext(ctx, filepath.Join(bin, program), append([]string{"-D", data}, options...)...)
	maker.SysProcAttr, maker.Dir = attr, dir
	if out, err := maker.CombinedOutput(); err != nil {
		c.Stop()
		return nil, fmt.Errorf("%s as %q: %w: %s", program, owner, err, out)
	}
	args := []string{"-D", data, "-k", dir, "-c", "listen_addresses="}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.cmd = exec.Command(filepath.Join(bin, "postgres"), args...)
	c.cmd.SysProcAttr, c.cmd.Dir = attr, dir
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.Postmaster = c.cmd.Process.Pid
	c.URL = c.databaseURL("postgres")
	for deadline := time.Now().Add(20 * time.Second); ; {
		conn, err := pgx.Connect(ctx, c.URL)
		if err == nil {
			return c, conn.Close(ctx)
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			text, _ := os.ReadFile(log.Name())
			c.Stop()
			return nil, fmt.Errorf("PostgreSQL did not start: %w\n%s", err, text)
		}
		wait(ctx, time.Now().Add(20*time.Millisecond))
	}
}

// CreateDatabase makes an empty database and returns its URL.
func (c *Cluster) CreateDatabase(ctx context.Context, name string) (string, error) {
	conn, err := pgx.Connect(ctx, c.URL)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	id := pgx.Identifier{name}.Sanitize()
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+id+" WITH (FORCE)"); err != nil {
		return "", err
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+id); err != nil {
		return "", err
	}
	return c.databaseURL(name), nil
}

func (c *Cluster) databaseURL(name string) string {
	return "postgres://postgres@/" + name + "?host=" + c.dir + "&sslmode=disable"
}

// Exec runs statements, each on its own.
func (c *Cluster) Exec(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, c.URL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// Stop ends the cluster and removes its files.
func (c *Cluster) Stop() {
	if c.cmd != nil && c.cmd.Process != nil {
		_ = c.cmd.Process.Signal(syscall.SIGINT) // a fast shutdown; ends at the latest with Wait
		_ = c.cmd.Wait()
	}
	_ = os.RemoveAll(c.dir)
}

// postgresBinaries finds the folder of initdb and postgres: on the path, or the
// newest below /usr/lib/postgresql.
func postgresBinaries() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil && exists(filepath.Join(filepath.Dir(real), "postgres")) {
			return filepath.Dir(real), nil
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	slices.SortFunc(found, func(a, b string) int { return version(b) - version(a) })
	if len(found) == 0 {
		return "", fmt.Errorf("no PostgreSQL binaries found: install the package postgresql, or name a server with --database-url")
	}
	return filepath.Dir(found[0]), nil
}

func version(path string) int {
	n, _ := strconv.Atoi(strings.Split(path, "/")[4])
	return n
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
