package postgres

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestMain can be the server that a test kills: with KILN_TEST_DATA_DIR it runs
// PostgreSQL there, says so, and ends with its standard input.
func TestMain(m *testing.M) {
	if dir := os.Getenv("KILN_TEST_DATA_DIR"); dir != "" {
		s, err := Start(context.Background(), Options{DataDir: dir})
		if err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
		s.Stop()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func start(t *testing.T, dir string) *Server {
	t.Helper()
	if _, err := findBinaries("", dir); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	began := time.Now()
	s, err := Start(ctx, Options{DataDir: dir, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %v", time.Since(began))
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// make db opens psql on the PostgreSQL of a data directory, as make run keeps it.
func TestPsqlOfTheDataDirectory(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"make", "psql"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	open := func() (string, error) {
		c := exec.Command("make", "--silent", "-C", "../..", "db", `ARGS=-Atc "SELECT current_setting('data_directory')"`)
		c.Env = append(os.Environ(), "KILN_DATABASE__DATA_DIR="+dir, "MAKEFLAGS=", "MAKELEVEL=")
		out, err := c.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	if out, err := open(); err == nil || !strings.Contains(out, "start one with make run") {
		t.Errorf("without a PostgreSQL: %v %s", err, out)
	}
	s := start(t, dir)
	if out, err := open(); err != nil || out != s.dir {
		t.Errorf("psql says %q, %v, want %q", out, err, s.dir)
	}
}

func query(t *testing.T, s *Server, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var conn *pgx.Conn
	var err error
	for { // it may be on its way back
		if conn, err = pgx.Connect(ctx, s.URL); err == nil {
			break
		}
		if wait(ctx, 10*time.Millisecond) != nil {
			t.Fatal(err)
		}
	}
	defer conn.Close(ctx)
	var answer string
	if err := conn.QueryRow(ctx, sql).Scan(&answer); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

func TestKeepsDataBetweenRuns(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	query(t, s, "CREATE TABLE kept (what text)")
	query(t, s, "INSERT INTO kept VALUES ('here') RETURNING what")
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if got := query(t, s, "SHOW "+setting); got != "on" {
			t.Errorf("%s is %s", setting, got)
		}
	}
	if got := query(t, s, "SHOW listen_addresses"); got != "" {
		t.Errorf("it listens on %s", got)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "postgres", "data", "postmaster.pid")); !os.IsNotExist(err) {
		t.Errorf("PostgreSQL still runs after Stop: %v", err)
	}
	if got := query(t, start(t, dir), "SELECT what FROM kept"); got != "here" {
		t.Errorf("the second run finds %q", got)
	}
}

func TestSocketPathTooLong(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 25))
	s := start(t, dir)
	if got := query(t, s, "SELECT current_database()::text"); got != "postgres" {
		t.Errorf("database %s", got)
	}
}

func TestFolderClosedToOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	start(t, filepath.Join(dir, "below"))
}

func TestTwoServersShareOne(t *testing.T) {
	dir := t.TempDir()
	first, second := start(t, dir), start(t, dir)
	pid := query(t, first, "SELECT pg_postmaster_start_time()::text")
	if got := query(t, second, "SELECT pg_postmaster_start_time()::text"); got != pid {
		t.Errorf("the second server has a PostgreSQL of its own: %s, %s", got, pid)
	}
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := query(t, first, "SELECT pg_postmaster_start_time()::text"); got != pid {
		t.Errorf("the second server's end touched the first one's PostgreSQL")
	}
	third := start(t, dir)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := query(t, third, "SELECT pg_postmaster_start_time()::text"); got == pid {
		t.Error("PostgreSQL outlived its server")
	}
}

func TestServerKilled(t *testing.T) {
	dir := t.TempDir()
	start(t, dir).Stop()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "KILN_TEST_DATA_DIR="+dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the server to kill says %q", line)
	}
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	// PostgreSQL is on its way out; the next server waits for that and starts its
	// own.
	s := start(t, dir)
	if s.process == nil {
		t.Error("the next server took over a PostgreSQL that nobody owns")
	}
	query(t, s, "SELECT 'x'")
}

// A backend that computes outlives a killed postmaster and holds its shared memory. A start
// waits for its end.
func TestStartBesideADyingPostgreSQL(t *testing.T) {
	dir := t.TempDir()
	first := start(t, dir)
	conn, err := pgx.Connect(t.Context(), first.URL)
	if err != nil {
		t.Fatal(err)
	}
	var backend int
	if err := conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	computes := make(chan struct{})
	go func() {
		defer close(computes)
		_, _ = conn.Exec(context.Background(), `DO $$ DECLARE till timestamptz := clock_timestamp() + '3 s'; BEGIN WHILE clock_timestamp() < till LOOP END LOOP; END $$`)
	}()
	for query(t, first, fmt.Sprintf("SELECT state FROM pg_stat_activity WHERE pid = %d", backend)) != "active" {
		time.Sleep(5 * time.Millisecond)
	}
	first.mu.Lock() // it does not start another one
	first.stopping = true
	first.mu.Unlock()
	close(first.stop)
	if err := first.process.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-first.process.exited
	if syscall.Kill(backend, 0) != nil {
		t.Fatal("no process of the killed PostgreSQL is left: the test proves nothing")
	}
	second := start(t, dir)
	query(t, second, "SELECT 'x'")
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("it started after %s, beside a process of the killed one", took)
	}
	<-computes
	// A PostgreSQL that does not end is an error that says so.
	busy, err := pgx.Connect(t.Context(), second.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := busy.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = busy.Exec(context.Background(), `DO $$ BEGIN LOOP END LOOP; END $$`)
	}()
	defer func() { _ = syscall.Kill(backend, syscall.SIGKILL) }()
	for query(t, second, fmt.Sprintf("SELECT state FROM pg_stat_activity WHERE pid = %d", backend)) != "active" {
		time.Sleep(5 * time.Millisecond)
	}
	second.mu.Lock()
	second.stopping = true
	second.mu.Unlock()
	close(second.stop)
	if err := second.process.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-second.process.exited
	if _, err := Start(t.Context(), Options{DataDir: dir, Wait: 500 * time.Millisecond}); !errors.Is(err, errPredecessor) {
		t.Errorf("beside one that does not end: %v", err)
	}
}

func TestPostgresKilled(t *testing.T) {
	s := start(t, t.TempDir())
	query(t, s, "CREATE TABLE kept (what text)")
	query(t, s, "INSERT INTO kept VALUES ('here') RETURNING what")
	s.process.cmd.Process.Signal(syscall.SIGKILL)
	<-s.process.exited
	if got := query(t, s, "SELECT what FROM kept"); got != "here" {
		t.Errorf("after a crash: %q", got)
	}
}

func TestStalePidFile(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"another process's": fmt.Sprintf("%d\n%s\n1\n5432\n%s\n\n\nready\n", os.Getpid(), s.dir, s.socketDir),
		"nobody's":          "99999999\n",
		"cut short":         "",
	} {
		path := filepath.Join(s.dir, "postmaster.pid")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.account.own(path); err != nil {
			t.Fatal(err)
		}
		if err := start(t, dir).Stop(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Run("no binaries", func(t *testing.T) {
		_, err := Start(context.Background(), Options{DataDir: t.TempDir(), BinDir: "/nowhere"})
		if err == nil || !strings.Contains(err.Error(), "apt-get install -y postgresql") || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("data of another version", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "postgres", "data"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "postgres", "data", "PG_VERSION"), []byte("9\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Start(context.Background(), Options{DataDir: dir})
		if err == nil || !strings.Contains(err.Error(), "PostgreSQL") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("broken setting", func(t *testing.T) {
		dir := t.TempDir()
		s := start(t, dir)
		s.Stop()
		f, err := os.OpenFile(filepath.Join(s.dir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString("shared_buffers = many\n")
		f.Close()
		_, err = Start(context.Background(), Options{DataDir: dir})
		if err == nil || !strings.Contains(err.Error(), "shared_buffers") {
			t.Errorf("got %v", err)
		}
	})
}

// PostgreSQL does not report its own state to systemd.
func TestPostgreSQLDoesNotNotifySystemd(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/run/systemd/notify")
	cmd := exec.Command("true")
	(*account)(nil).apply(cmd, t.TempDir())
	for _, v := range cmd.Env {
		if strings.HasPrefix(v, "NOTIFY_SOCKET") {
			t.Errorf("the environment has %s", v)
		}
	}
}
