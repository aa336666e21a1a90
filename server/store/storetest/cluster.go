package storetest

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/queries"
)

// Instance is a PostgreSQL server of a test alone, which the test can stop and promote. It listens on a socket, and
// is gone when the test ends.
type Instance struct {
	t    testing.TB
	bin  string   // the folder of PostgreSQL's programs
	dir  string   // its socket and its data
	as   []string // runs a program as the owner of the data
	args string   // of postgres
}

// database is the name of the database of an Instance.
const database = "kiln"

// NewCluster starts a primary with a migrated database. The test is skipped where PostgreSQL's programs are not
// installed. settings are lines of postgresql.conf.
func NewCluster(t testing.TB, settings ...string) *Instance {
	t.Helper()
	all, _ := filepath.Glob("/usr/lib/postgresql/" + cmp.Or(os.Getenv("PG"), "*") + "/bin/pg_basebackup")
	if len(all) == 0 {
		t.Skip("pg_basebackup is not in /usr/lib/postgresql")
	}
	i := newInstance(t, filepath.Dir(all[len(all)-1]), 100)
	i.run("initdb", "--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-D", i.data())
	i.Configure(settings...)
	i.Start()
	i.Exec("postgres", "CREATE DATABASE "+database)
	if _, err := queries.Migrate(context.Background(), i.URL()); err != nil {
		t.Fatal(err)
	}
	return i
}

// StandbyOf starts a streaming standby of the server that has the database of a URL.
func StandbyOf(t testing.TB, at string) *Instance {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil || !strings.HasPrefix(u.Query().Get("host"), "/") {
		t.Skip("the PostgreSQL of TEST_DATABASE_URL has no socket to copy it from")
	}
	conn, err := pgx.Connect(context.Background(), at)
	if err != nil {
		t.Fatal(err)
	}
	var version, connections int
	err = conn.QueryRow(context.Background(), "SELECT current_setting('server_version_num')::int / 10000, current_setting('max_connections')::int").Scan(&version, &connections)
	conn.Close(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	bin := fmt.Sprintf("/usr/lib/postgresql/%d/bin", version)
	if _, err := os.Stat(filepath.Join(bin, "pg_basebackup")); err != nil {
		t.Skip("no pg_basebackup: ", err)
	}
	i := newInstance(t, bin, connections)
	i.run("pg_basebackup", "-D", i.data(), "-h", u.Query().Get("host"), "-U", u.Query().Get("user"), "-R", "-X", "stream", "-c", "fast", "--no-sync")
	i.Start()
	return i
}

// Standby starts a streaming standby. name is its application_name, which synchronous_standby_names of the primary
// can contain.
func (i *Instance) Standby(name string) *Instance {
	i.t.Helper()
	s := newInstance(i.t, i.bin, 100)
	s.run("pg_basebackup", "-D", s.data(), "-d", "host="+i.dir+" user=postgres application_name="+name, "-R", "-X", "stream", "-c", "fast", "--no-sync")
	s.Start()
	return s
}

func newInstance(t testing.TB, bin string, connections int) *Instance {
	t.Helper()
	dir, err := os.MkdirTemp("", "kiln-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	i := &Instance{t: t, bin: bin, dir: dir, args: fmt.Sprintf("-k %s -c listen_addresses= -c max_connections=%d -c fsync=off", dir, connections)}
	t.Cleanup(func() {
		i.Stop()
		os.RemoveAll(dir)
	})
	if os.Getuid() == 0 { // PostgreSQL does not run as root
		owner, err := user.Lookup("postgres")
		if err != nil {
			t.Skip("no user to run PostgreSQL as: ", err)
		}
		if out, err := exec.Command("chown", "postgres", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		i.as = []string{"setpriv", "--reuid=" + owner.Uid, "--regid=" + owner.Gid, "--clear-groups"}
	}
	return i
}

func (i *Instance) data() string { return filepath.Join(i.dir, "data") }

// Dir is the folder of its socket.
func (i *Instance) Dir() string { return i.dir }

// URL is its database.
func (i *Instance) URL() string { return URLOf(i) }

// URLOf is the database of several Instances, of which that one is used that takes writes. With one it is used
// whether it takes them or not.
func URLOf(list ...*Instance) string {
	var hosts, ports []string
	for _, i := range list {
		hosts, ports = append(hosts, i.dir), append(ports, "5432")
	}
	out := "postgres:///" + database + "?user=postgres&host=" + strings.Join(hosts, ",") + "&port=" + strings.Join(ports, ",")
	if len(list) > 1 {
		out += "&target_session_attrs=read-write"
	}
	return out
}

// run runs one of PostgreSQL's programs as the owner of the data.
func (i *Instance) run(name string, args ...string) {
	i.t.Helper()
	if err := i.try(name, args...); err != nil {
		i.t.Fatal(err)
	}
}

func (i *Instance) try(name string, args ...string) error {
	all := append(append([]string{}, i.as...), append([]string{filepath.Join(i.bin, name)}, args...)...)
	cmd := exec.Command(all[0], all[1:]...)
	cmd.Dir = i.dir
	// Not a pipe: the server that pg_ctl leaves behind would keep it open.
	out, err := os.Create(filepath.Join(i.dir, name+".out"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%s: %w: %s", name, err, text)
	}
	return nil
}

// Configure adds lines to postgresql.conf, for the next start.
func (i *Instance) Configure(lines ...string) {
	i.t.Helper()
	f, err := os.OpenFile(filepath.Join(i.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		i.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("\n" + strings.Join(lines, "\n") + "\n"); err != nil {
		i.t.Fatal(err)
	}
}

// Start starts it and waits until it takes connections.
func (i *Instance) Start() {
	i.t.Helper()
	i.run("pg_ctl", "-D", i.data(), "-w", "-l", filepath.Join(i.dir, "log"), "start", "-o", i.args)
}

// Stop ends it as a crash does. One that does not run stays as it is.
func (i *Instance) Stop() {
	_ = i.try("pg_ctl", "-D", i.data(), "-m", "immediate", "-w", "stop")
}

// Promote makes a standby take writes, and waits until it does.
func (i *Instance) Promote() {
	i.t.Helper()
	i.run("pg_ctl", "-D", i.data(), "-w", "promote")
}

// CutOff ends the replication of a standby: what its primary writes from now on is lost when the standby takes over.
func (i *Instance) CutOff() {
	i.t.Helper()
	i.Exec(database, "ALTER SYSTEM SET primary_conninfo = ''")
	i.Exec(database, "SELECT pg_reload_conf()")
	i.Await("SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
}

// Follows waits until a standby has replayed everything that its primary has written.
func (i *Instance) Follows(primary *Instance) {
	i.t.Helper()
	at := primary.Query("SELECT pg_current_wal_lsn()::text")
	i.Await("SELECT pg_last_wal_replay_lsn() >= '" + at + "'")
}

// Exec runs a statement in a database.
func (i *Instance) Exec(name, sql string) {
	i.t.Helper()
	conn, err := pgx.Connect(context.Background(), strings.Replace(i.URL(), "///"+database, "///"+name, 1))
	if err != nil {
		i.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), sql); err != nil {
		i.t.Fatalf("%s: %v", sql, err)
	}
}

// Query returns the text that a query selects.
func (i *Instance) Query(sql string) (text string) {
	i.t.Helper()
	conn, err := pgx.Connect(context.Background(), i.URL())
	if err != nil {
		i.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(context.Background(), "SELECT ("+sql+")::text").Scan(&text); err != nil {
		i.t.Fatalf("%s: %v", sql, err)
	}
	return text
}

// Await waits until a query selects true.
func (i *Instance) Await(sql string) {
	i.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); i.Query(sql) != "true"; {
		if time.Now().After(deadline) {
			i.t.Fatalf("%s: not true within 30 s", sql)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Signal sends a signal to its processes. SIGSTOP makes it hang, SIGCONT goes on.
func (i *Instance) Signal(sig syscall.Signal) {
	i.t.Helper()
	reached := make(map[int]bool)
	for before := -1; before < len(reached); { // a process that begins meanwhile is found by the next look
		before = len(reached)
		for _, pid := range i.Processes() {
			if !reached[pid] {
				_ = syscall.Kill(pid, sig) // one that has ended hangs no more
				reached[pid] = true
			}
		}
	}
}

// Processes returns its processes, the postmaster first.
func (i *Instance) Processes() []int {
	i.t.Helper()
	text, err := os.ReadFile(filepath.Join(i.data(), "postmaster.pid"))
	if err != nil {
		i.t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	main, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		i.t.Fatal(err)
	}
	out := []int{main}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(main) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}
