package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/queries"
	"kiln/server/notify/owner"
	"kiln/server/store/storetest"
)

// activeApp stores the active App x, which has a subscription.
const activeApp = `INSERT INTO resource_type (typ, name) VALUES (99, 'App');
	INSERT INTO resource (rid, ref, last_updated, version, typ, shard, method, id, terms, targets, body)
	VALUES (99::bigint << 48 | 1, 256, now(), 1, 99, 0, 'S', 'x', '{}', '{}', '{"resourceType":"App","id":"x","status":"active","subscriptions":[{"resourceType":"Basic"}]}')`

// doctor and config check see what would keep a server from working well.
func TestDoctor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		sql  string // done to the database before
		auth bool   // auth.enabled
		what string // the finding that fails, "" for none
		says string
	}{
		{name: "all is well"},
		{name: "synchronous_commit off", sql: "ALTER DATABASE %s SET synchronous_commit = off", what: "durability", says: "synchronous_commit is off"},
		{name: "a read-only database", sql: "ALTER DATABASE %s SET default_transaction_read_only = on", what: "writes", says: "read-only"},
		{name: "a missing table", sql: "DROP TABLE index_string", what: "schema", says: "index_string"},
		{name: "a Subscription without an owner", sql: "INSERT INTO notification_subscription (id, status, owner, error) VALUES ('x', 'off', '{}', '" + owner.NoOwner + "')", what: "subscriptions", says: "Subscription/x: it has no owner"},
		{name: "an active App without a grant", auth: true, sql: activeApp, what: "apps", says: "App/x"},
		{name: "an active App without a grant, without authorization", sql: activeApp},
		{name: "an active App with a grant", auth: true, sql: activeApp + `; INSERT INTO oauth_client (id, registration, active, created, updated) VALUES ('app-x', '{"scopes": ["system/*.rs"]}', true, now(), now())`},
		{name: "a later schema", sql: "INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)", what: "schema", says: "9999"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url := storetest.New(t)
			change(t, url, "ALTER DATABASE %s SET synchronous_commit = on")
			change(t, url, tt.sql)
			flags := []string{"--listen", "127.0.0.1:0", "--database-url", url}
			if tt.auth {
				file := filepath.Join(t.TempDir(), "kiln.yaml")
				if err := os.WriteFile(file, []byte("auth: {enabled: true, issuer: 'http://127.0.0.1:8080'}"), 0o600); err != nil {
					t.Fatal(err)
				}
				flags = append(flags, "--config", file)
			}
			out, _ := runCommand(t, append([]string{"doctor", "--json"}, flags...)...)
			var found []finding
			if jerr := json.Unmarshal([]byte(out), &found); jerr != nil {
				t.Fatalf("%q: %v", out, jerr)
			}
			for _, f := range found {
				if f.What == "durability" && f.What != tt.what && strings.Contains(f.Says, "fsync is off") && !strings.Contains(f.Says, "\n") {
					continue // PostgreSQL for tests may run without fsync
				}
				if f.OK == (f.What == tt.what) || f.What == tt.what && !strings.Contains(f.Says, tt.says) {
					t.Errorf("%s: ok %v, %q", f.What, f.OK, f.Says)
				}
			}
			_, err := runCommand(t, append([]string{"config", "check"}, flags...)...)
			if tt.what != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("config check: %v, want %q", err, tt.says)
			}
		})
	}
}

// change runs a statement on a database; %s in it is the database's name.
func change(t *testing.T, url, sql string) {
	t.Helper()
	if sql == "" {
		return
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if strings.Contains(sql, "%s") {
		sql = fmt.Sprintf(sql, pgx.Identifier{conn.Config().Database}.Sanitize())
	}
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// Every table that the migrations make is known, so that doctor can miss it.
func TestTablesAreThoseOfTheMigrations(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), storetest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() AND tablename <> 'goose_db_version' ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	want, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if got := queries.Tables(); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("tables\n%v\nwant\n%v", got, want)
	}
}

// startKiln starts this program as kiln with an environment of its own.
func startKiln(t *testing.T, args ...string) (c *exec.Cmd, said *sharedBuffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	c = exec.CommandContext(ctx, os.Args[0], args...)
	c.Dir = t.TempDir()
	c.Env = append(os.Environ(), "RUN_AS_KILN=1")
	said = new(sharedBuffer)
	c.Stdout, c.Stderr = said, said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c, said
}

// sharedBuffer is read while it is written to.
type sharedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *sharedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *sharedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// serve says in one line why it does not start.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	busy := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(busy.Close)
	at := busy.Listener.Addr().String()
	later := storetest.New(t)
	change(t, later, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)")
	nobody := strings.Replace(later, "postgres://", "postgres://nobody_of_that_name@", 1)
	if u, err := pgx.ParseConfig(later); err == nil {
		nobody = fmt.Sprintf("host=%s port=%d user=nobody_of_that_name dbname=%s sslmode=disable", u.Host, u.Port, u.Database)
	}
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"a busy port", []string{"--listen", at}, "server.listen is " + at + ", and another program listens there: choose another port, such as --listen"},
		{"a later schema", []string{"--listen", "127.0.0.1:0", "--database-url", later}, "the database has schema 9999"},
		{"a url of another kind", []string{"--listen", "127.0.0.1:0", "--database-url", "mysql://db/kiln"}, "expected a URL that starts with postgres://"},
		{"a user that is not known", []string{"--listen", "127.0.0.1:0", "--database-url", nobody}, "refuses the connection"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, said := startKiln(t, append([]string{"serve"}, tt.args...)...)
			err := c.Wait()
			text := strings.TrimSpace(said.String())
			if err == nil || !strings.Contains(text, tt.want) || strings.Contains(text, "\n") {
				t.Errorf("%v, said %q; want one line with %q", err, text, tt.want)
			}
		})
	}
}

// A start that is interrupted says so in one line.
func TestServeInterruptedAtFirstStart(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("pg_config"); err != nil {
		if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) == 0 {
			t.Skip("there are no binaries of PostgreSQL")
		}
	}
	for _, after := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond} {
		c, said := startKiln(t, "serve", "--listen", "127.0.0.1:0")
		begin := time.Now()
		for time.Since(begin) < after { // in the middle of the first start, wherever that is
			time.Sleep(10 * time.Millisecond)
		}
		if err := c.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		err := c.Wait()
		text := strings.TrimSpace(said.String())
		if strings.Contains(text, "Kiln ") { // it was faster
			continue
		}
		if text == "kiln: interrupted" || text == "" { // nothing: at its very end, or before its first line
			continue
		}
		t.Errorf("after %v: %v, said %q; want one line", after, err, text)
	}
}

// A database that is not up yet is waited for.
func TestServeWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	// A port that nobody listens on yet.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr)
	l.Close()
	dsn := fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d/%s?sslmode=disable", config.User, config.Password, at.Port, config.Database)
	c, said := startKiln(t, "serve", "--listen", "127.0.0.1:0", "--database-url", dsn)
	waits := func(text string) {
		t.Helper()
		for begin := time.Now(); !strings.Contains(said.String(), text); time.Sleep(20 * time.Millisecond) {
			if time.Since(begin) > 20*time.Second {
				t.Fatalf("it does not say %q: %s", text, said.String())
			}
		}
	}
	waits("waiting for the database")
	if n := strings.Count(said.String(), "waiting"); n != 1 {
		t.Errorf("it says %d times that it waits", n)
	}

	// Now it comes up.
	if l, err = net.Listen("tcp", at.String()); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	network, address := pgxAddress(config)
	go forward(l, network, address)
	waits("Kiln ")
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

func pgxAddress(c *pgx.ConnConfig) (network, address string) {
	if strings.HasPrefix(c.Host, "/") {
		return "unix", fmt.Sprintf("%s/.s.PGSQL.%d", c.Host, c.Port)
	}
	return "tcp", net.JoinHostPort(c.Host, fmt.Sprint(c.Port))
}

// forward carries connections on.
func forward(l net.Listener, network, address string) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial(network, address)
		if err != nil {
			in.Close()
			continue
		}
		go copyBoth(in, out)
	}
}

func copyBoth(a, b net.Conn) {
	defer a.Close()
	defer b.Close()
	go func() { _, _ = io.Copy(a, b); a.Close() }()
	_, _ = io.Copy(b, a)
}

// doctor looks at each host of a URL with several: one takes writes, and only one.
func TestDoctorFailover(t *testing.T) {
	t.Parallel()
	primary := storetest.NewCluster(t)
	standby := primary.Standby("standby")
	failover := func(url string) finding {
		t.Helper()
		out, _ := runCommand(t, "doctor", "--json", "--listen", "127.0.0.1:0", "--database-url", url)
		var found []finding
		if err := json.Unmarshal([]byte(out), &found); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		for _, f := range found {
			if f.What == "failover" {
				return f
			}
		}
		t.Fatalf("there is no finding failover: %s", out)
		return finding{}
	}
	both := storetest.URLOf(primary, standby)
	for _, tt := range []struct {
		name, url string
		before    func()
		ok        bool
		says      []string
	}{
		{"one host", primary.URL(), func() {}, true, []string{"one host", "asynchronous"}},
		{"two hosts", both, func() {}, true, []string{"2 hosts", primary.Dir(), "asynchronous"}},
		{"synchronous", both, func() {
			primary.Exec("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
			primary.Exec("postgres", "SELECT pg_reload_conf()")
			primary.Await("SELECT current_setting('synchronous_standby_names') <> ''")
		}, true, []string{" synchronous"}},
		{"two that take writes", both, standby.Promote, false, []string{primary.Dir(), standby.Dir(), "take writes"}},
		{"one that is gone", both, primary.Stop, false, []string{primary.Dir(), "cannot be reached"}},
	} {
		tt.before()
		f := failover(tt.url)
		if f.OK != tt.ok {
			t.Errorf("%s: ok %v, %q", tt.name, f.OK, f.Says)
		}
		for _, want := range tt.says {
			if !strings.Contains(f.Says, want) {
				t.Errorf("%s: %q lacks %q", tt.name, f.Says, want)
			}
		}
	}
	if _, err := runCommand(t, "config", "check", "--listen", "127.0.0.1:0", "--database-url", strings.Replace(both, "read-write", "any", 1)); err == nil || !strings.Contains(err.Error(), "target_session_attrs=read-write") {
		t.Errorf("several hosts without target_session_attrs: %v", err)
	}
}
