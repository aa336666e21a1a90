package store_test

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"kiln/server/store"
	"kiln/server/store/storetest"
)

// TestCheckPooler asks PgBouncer in each of its modes, and PostgreSQL without it.
func TestCheckPooler(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	at := storetest.New(t)
	if kind, err := store.CheckPooler(ctx, at); kind != store.NoPooler || err != nil {
		t.Errorf("without a pooler: %v, %v", kind, err)
	}
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("pgbouncer is not installed: ", err)
	}
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	for mode, works := range map[string]bool{"session": true, "transaction": false, "statement": false} {
		for _, more := range []string{"", "server_round_robin = 1\nmin_pool_size = 4\n"} {
			t.Run(mode+" "+strings.ReplaceAll(more, "\n", " "), func(t *testing.T) {
				t.Parallel()
				pooled := startPgBouncer(t, program, u, "pool_mode = "+mode+"\n"+more)
				kind, err := store.CheckPooler(ctx, pooled)
				if works != (err == nil) || works && kind != store.SessionPooler || !works && !strings.Contains(err.Error(), "pool_mode = session") {
					t.Errorf("%v, %v", kind, err)
				}
				if err := store.Migrate(ctx, pooled); works != (err == nil) {
					t.Errorf("Migrate: %v", err)
				}
				if works {
					write(t, openAt(t, pooled), put(t, "Patient", "p", "x"))
				}
			})
		}
	}
}

// startPgBouncer returns the URL of a database behind a PgBouncer of the test.
func startPgBouncer(t *testing.T, program string, to *url.URL, settings string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kiln-pooler-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	user, host := to.Query().Get("user"), to.Query().Get("host")
	if user == "" || host == "" {
		t.Skip("TEST_DATABASE_URL has no socket and user")
	}
	file := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\n* = host=%s port=5432 user=%s\n[pgbouncer]\nlisten_addr =\nunix_socket_dir = %s\nlisten_port = 6432\nauth_type = any\n"+
		"logfile = %s/log\npidfile = %s/pid\ndefault_pool_size = 20\n%s", host, user, dir, dir, dir, settings)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-q", file)
	if os.Getuid() == 0 { // PgBouncer does not run as root
		if out, err := exec.Command("chown", "-R", "postgres", dir).CombinedOutput(); err != nil {
			t.Skipf("no user to run PgBouncer as: %v: %s", err, out)
		}
		cmd = exec.Command(program, "-q", "-u", "postgres", file)
	}
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	socket := filepath.Join(dir, ".s.PGSQL.6432")
	for deadline := time.Now().Add(30 * time.Second); ; {
		if conn, err := net.Dial("unix", socket); err == nil {
			conn.Close()
			break
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Fatalf("PgBouncer does not start: %s", log)
		}
		time.Sleep(10 * time.Millisecond)
	}
	u := *to
	q := u.Query()
	q.Set("host", dir)
	q.Set("port", "6432")
	u.RawQuery = q.Encode()
	return u.String()
}

// TestOldPostgreSQL has Migrate meet a PostgreSQL of version 13, which would refuse a migration.
func TestOldPostgreSQL(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				b := pgproto3.NewBackend(conn, conn)
				if _, err := b.ReceiveStartupMessage(); err != nil {
					return
				}
				b.Send(&pgproto3.AuthenticationOk{})
				b.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "13.22 (Debian 13.22-1)"})
				b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
				for b.Flush() == nil {
					if m, err := b.Receive(); err != nil {
						return
					} else if _, ends := m.(*pgproto3.Terminate); ends {
						return
					}
					b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "42601", Message: "syntax error"})
					b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
				}
			}()
		}
	}()
	err = store.Migrate(t.Context(), "postgres://kiln@"+l.Addr().String()+"/kiln?sslmode=disable")
	if err == nil || !strings.Contains(err.Error(), "PostgreSQL 13.22 (Debian 13.22-1); 14 or newer is needed") {
		t.Errorf("Migrate: %v", err)
	}
}
