package postgres

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options say where the data is. Only DataDir is needed.
type Options struct {
	DataDir string       // PostgreSQL's own files go below it, in "postgres"
	BinDir  string       // with initdb and postgres; "" searches the usual places
	Logger  *slog.Logger // nil discards
	// Wait bounds how long a start waits for the last processes of a killed PostgreSQL on the
	// data; 0 is a minute.
	Wait time.Duration
}

// Server is a running PostgreSQL.
type Server struct {
	URL string // for pgx

	binDir, dir, socketDir string
	account                *account      // to run as; nil is this process's own
	patience               time.Duration // Options.Wait
	log                    *slog.Logger

	mu       sync.Mutex
	stopping bool
	process  *process
	stop     chan struct{}
	stopped  sync.WaitGroup
}

// Start returns when PostgreSQL takes connections: in less than a second the
// first time, in a tenth of one after that. It fails with one line that says what
// to do when there are no binaries, when they are of another version than the
// data, or when the data directory cannot be used.
func Start(ctx context.Context, o Options) (*Server, error) {
	root, err := filepath.Abs(filepath.Join(o.DataDir, "postgres"))
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	s := &Server{dir: filepath.Join(root, "data"), log: o.Logger, stop: make(chan struct{}), patience: cmp.Or(o.Wait, time.Minute)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.binDir, err = findBinaries(o.BinDir, s.dir); err != nil {
		return nil, err
	}
	// The cluster's folder is closed to others, what leads to it is not: as root,
	// the account that PostgreSQL runs as has to pass.
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if s.account, err = unprivileged(root); err != nil {
		return nil, err
	}
	if err := s.account.own(root); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := lockFile(ctx, filepath.Join(root, "lock"))
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	defer lock.Close()

	if _, err := os.Stat(s.dir); errors.Is(err, fs.ErrNotExist) {
		if err := s.initialize(ctx, root); err != nil {
			return nil, err
		}
	}
	if err := s.chooseSocket(root); err != nil {
		return nil, err
	}
	if err := s.startOrAdopt(ctx); err != nil {
		return nil, err
	}
	s.stopped.Go(s.supervise)
	return s, nil
}

// initialize makes a cluster beside its final place and moves it there.
func (s *Server) initialize(ctx context.Context, root string) error {
	began := time.Now()
	fresh := s.dir + ".new"
	if err := os.RemoveAll(fresh); err != nil { // of a start that was cut short
		return fmt.Errorf("data directory: %w", err)
	}
	// The directory is synced in one go at the end; initdb would do it file by
	// file. Only this user reaches the socket, so nobody is asked for a password.
	args := []string{"-D", fresh, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions"}
	if canSync {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.binDir, "initdb"), args...)
	s.account.apply(cmd, root)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, lastLines(out))
	}
	if err := s.configure(ctx, fresh); err != nil {
		return fmt.Errorf("configure PostgreSQL: %w", err)
	}
	if err := syncDir(fresh); err != nil {
		return fmt.Errorf("sync data directory: %w", err)
	}
	if err := os.Rename(fresh, s.dir); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := syncDir(root); err != nil {
		return fmt.Errorf("sync data directory: %w", err)
	}
	s.log.Info("made a PostgreSQL cluster", "dir", s.dir, "binaries", s.binDir, "took", time.Since(began))
	return nil
}

// chooseSocket picks the socket's folder: beside the data, or a private temporary
// one where the path would be longer than a socket's may be. Either belongs to
// the account alone.
func (s *Server) chooseSocket(root string) error {
	const maxPath = 107 - len("/.s.PGSQL.5432.lock")
	s.socketDir = filepath.Join(root, "run")
	if len(s.socketDir) > maxPath {
		s.socketDir = filepath.Join(os.TempDir(), fmt.Sprintf("kiln-%x", pathHash(root)))
	}
	if err := os.Mkdir(s.socketDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("socket directory: %w", err)
	}
	if err := s.account.own(s.socketDir); err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	info, err := os.Lstat(s.socketDir)
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		return fmt.Errorf("socket directory %s is not a folder of ours alone", s.socketDir)
	}
	s.URL = "postgres://postgres@/postgres?" + url.Values{"host": {s.socketDir}, "sslmode": {"disable"}}.Encode()
	return nil
}

// startOrAdopt leaves a PostgreSQL running on the data: the one that another
// server has started, else a new one. It waits for the end of one that is stopping, and
// of the last processes of one that was killed.
func (s *Server) startOrAdopt(ctx context.Context) error {
	end := time.Now().Add(s.patience)
	told := false
	for {
		err := s.tryStart(ctx)
		if !errors.Is(err, errPredecessor) || time.Now().After(end) {
			return err
		}
		if !told {
			told = true
			s.log.Info("waiting for the end of another PostgreSQL on this data directory", "reason", err)
		}
		if wait(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// errPredecessor says that another PostgreSQL on the data has not ended.
var errPredecessor = errors.New("another PostgreSQL on this data directory has not ended")

// predecessorMessages are what PostgreSQL logs when it does not start because of another one
// on the same data: processes of a killed one hold its shared memory, or it still has its
// lock files.
var predecessorMessages = []string{
	"pre-existing shared memory block", // also "… is still in use"
	"lock file \"",                     // "… already exists"
}

// tryStart starts a PostgreSQL or adopts a running one. It fails with errPredecessor where
// another attempt can succeed.
func (s *Server) tryStart(ctx context.Context) error {
	for {
		other, err := readPostmaster(s.dir)
		if err != nil {
			return err
		}
		if other.pid == 0 {
			return s.launch(ctx)
		}
		if !other.runs(s.dir) {
			// Of a server that was killed. PostgreSQL removes the file itself unless
			// the number has gone to another process of the same user.
			if err := os.Remove(filepath.Join(s.dir, "postmaster.pid")); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("stale postmaster.pid: %w", err)
			}
			continue
		}
		if other.status == "ready" && other.socketDir == s.socketDir {
			if err := ping(ctx, s.URL); err != nil { // it has not written yet that it stops
				return fmt.Errorf("%w (process %d): %w", errPredecessor, other.pid, err)
			}
			s.process = nil
			s.log.Info("another server runs PostgreSQL on this data directory; using it", "pid", other.pid)
			return nil
		}
		// Starting, or stopping with the server that it belonged to.
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("PostgreSQL (process %d) still runs on %s and does not become ready: %w", other.pid, s.dir, err)
		}
	}
}

// launch starts PostgreSQL and waits until it takes connections.
func (s *Server) launch(ctx context.Context) error {
	began := time.Now()
	root := filepath.Dir(s.dir)
	logPath := filepath.Join(root, "log")
	if info, err := os.Stat(logPath); err == nil && info.Size() > 10<<20 {
		if err := os.Truncate(logPath, 0); err != nil {
			return fmt.Errorf("log of PostgreSQL: %w", err)
		}
	}
	logFile, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("log of PostgreSQL: %w", err)
	}
	defer logFile.Close()
	logFrom := int64(0)
	if info, err := logFile.Stat(); err == nil {
		logFrom = info.Size()
	}
	cmd := exec.Command(filepath.Join(s.binDir, "postgres"), "-D", s.dir, "-k", s.socketDir, "-c", "listen_addresses=")
	cmd.Stdout, cmd.Stderr = logFile, logFile
	s.account.apply(cmd, root)
	p := &process{cmd: cmd, exited: make(chan struct{})}
	if err := p.start(); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	for {
		err := ping(ctx, s.URL)
		if err == nil {
			break
		}
		select {
		case <-p.exited:
			said, _ := readFrom(logPath, logFrom)
			for _, message := range predecessorMessages {
				if bytes.Contains(said, []byte(message)) {
					return fmt.Errorf("%w: %s", errPredecessor, lastLines(said))
				}
			}
			return fmt.Errorf("PostgreSQL did not start: %s (all of it in %s)", lastLines(said), logPath)
		case <-ctx.Done():
			p.end()
			return fmt.Errorf("PostgreSQL was not ready in time: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	s.process = p
	s.log.Debug("started PostgreSQL", "dir", s.dir, "pid", cmd.Process.Pid, "took", time.Since(began))
	return nil
}

func ping(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// supervise starts PostgreSQL again when it has ended without being asked: after
// a crash, or because it belonged to another server.
func (s *Server) supervise() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-s.stop
		cancel()
	}()
	for {
		s.mu.Lock()
		p := s.process
		s.mu.Unlock()
		if p != nil {
			select {
			case <-s.stop:
				return
			case <-p.exited:
				s.log.Error("PostgreSQL ended; starting it again", "state", p.cmd.ProcessState.String())
			}
		} else if !s.waitForOther() {
			return
		}
		for {
			s.mu.Lock()
			if s.stopping {
				s.mu.Unlock()
				return
			}
			err := s.restart(ctx)
			s.mu.Unlock()
			if err == nil {
				break
			}
			s.log.Error("start PostgreSQL again", "error", err)
			if wait(ctx, 200*time.Millisecond) != nil {
				return
			}
		}
	}
}

// waitForOther returns true when the adopted PostgreSQL has ended and false when
// this server stops.
func (s *Server) waitForOther() bool {
	for {
		other, err := readPostmaster(s.dir)
		if err == nil && (other.pid == 0 || !other.runs(s.dir)) {
			return true
		}
		select {
		case <-s.stop:
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *Server) restart(ctx context.Context) error {
	lock, err := lockFile(ctx, filepath.Join(filepath.Dir(s.dir), "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	return s.startOrAdopt(ctx)
}

// Stop ends PostgreSQL: sessions are cut off, everything is written, and the next
// start has nothing to repair. A PostgreSQL that belongs to another server stays.
func (s *Server) Stop() error {
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		return nil
	}
	s.stopping = true
	p := s.process
	close(s.stop)
	s.mu.Unlock()
	var err error
	if p != nil {
		if err = p.end(); err == nil && filepath.Dir(s.socketDir) != filepath.Dir(s.dir) {
			err = os.Remove(s.socketDir) // temporary, and empty now
		}
	}
	s.stopped.Wait()
	return err
}

// process is a PostgreSQL that this server has started.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// start starts the process from a thread that lives as long as the process does:
// the kernel ends the process when the thread that started it is gone.
func (p *process) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.cmd.Wait() // its state is in ProcessState
			close(p.exited)
		}
	}()
	return <-started
}

// end asks for a fast shutdown, and insists after half a minute.
func (p *process) end() error {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop PostgreSQL: %w", err)
		}
		select {
		case <-p.exited:
			return nil
		case <-time.After(30 * time.Second):
		}
	}
	return errors.New("stop PostgreSQL: it does not end")
}

// postmaster is what postmaster.pid says of a running PostgreSQL.
type postmaster struct {
	pid       int // 0 when there is no file
	socketDir string
	status    string // "starting", "stopping", "ready", "standby"
}

// Running reports whether a PostgreSQL runs on the data directory.
func Running(dataDir string) bool {
	dir, err := filepath.Abs(filepath.Join(dataDir, "postgres", "data"))
	if err != nil {
		return false
	}
	p, err := readPostmaster(dir)
	return err == nil && p.pid > 0 && p.runs(dir)
}

// readPostmaster reads postmaster.pid: one line each for process, data directory,
// start time, port, socket directory, address, shared memory, status.
func readPostmaster(dir string) (postmaster, error) {
	b, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return postmaster{}, nil
	}
	if err != nil {
		return postmaster{}, fmt.Errorf("postmaster.pid: %w", err)
	}
	lines := strings.Split(string(b), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(lines[0]))
	p := postmaster{pid: max(pid, -pid)}
	if p.pid == 0 {
		p.pid = -1 // a file cut short: no process has this number
	}
	if len(lines) > 4 {
		p.socketDir = strings.TrimSpace(lines[4])
	}
	if len(lines) > 7 {
		p.status = strings.TrimSpace(lines[7])
	}
	return p, nil
}

func lastLines(out []byte) string {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	if len(lines) > 5 {
		lines = lines[len(lines)-5:]
	}
	return string(bytes.Join(lines, []byte(" | ")))
}

func readFrom(path string, offset int64) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return b[min(int(offset), len(b)):], nil
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
