package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Kiln is a server started for the measurement.
type Kiln struct {
	URL string
	PID int
	// Started is how long it took until it was ready.
	Started time.Duration

	dir string
	cmd *exec.Cmd
	log string
}

// StartKiln starts the binary on a free port, without authorization, against a
// database, and waits until it is ready.
func StartKiln(ctx context.Context, binary, databaseURL string, flags ...string) (*Kiln, error) {
	return startKiln(ctx, binary, databaseURL, []string{"KILN_AUTH__ENABLED=false"}, flags...)
}

// startKiln is StartKiln with an environment of its own.
func startKiln(ctx context.Context, binary, databaseURL string, environment []string, flags ...string) (*Kiln, error) {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kiln-bench-server-")
	if err != nil {
		return nil, err
	}
	k := &Kiln{URL: "http://" + address, dir: dir, log: filepath.Join(dir, "log")}
	log, err := os.Create(k.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := append([]string{"serve", "--listen", address, "--database-url", databaseURL, "--data-dir", dir}, flags...)
	k.cmd = exec.Command(binary, args...)
	k.cmd.Dir = dir
	k.cmd.Env = append(os.Environ(), environment...)
	k.cmd.Stdout, k.cmd.Stderr = log, log
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	begin := time.Now()
	if err := k.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	k.PID = k.cmd.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- k.cmd.Wait() }()
	for deadline := begin.Add(30 * time.Second); ; {
		resp, err := http.Get(k.URL + "/health/ready")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				k.Started = time.Since(begin)
				return k, nil
			}
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("%s ended before it was ready (%v):\n%s", binary, err, k.Log())
		case <-ctx.Done():
			k.Stop()
			return nil, ctx.Err()
		default:
		}
		if time.Now().After(deadline) {
			text := k.Log()
			k.Stop()
			return nil, fmt.Errorf("%s was not ready within 30 s:\n%s", binary, text)
		}
		wait(ctx, time.Now().Add(10*time.Millisecond))
	}
}

// Log returns the end of the server's output.
func (k *Kiln) Log() string {
	b, _ := os.ReadFile(k.log)
	if len(b) > 4000 {
		b = b[len(b)-4000:]
	}
	return string(b)
}

// Stop ends the server and removes its files.
func (k *Kiln) Stop() {
	_ = k.cmd.Process.Signal(syscall.SIGTERM)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if syscall.Kill(k.PID, 0) != nil {
			break
		}
		wait(context.Background(), time.Now().Add(10*time.Millisecond))
	}
	_ = k.cmd.Process.Kill() // an error says that it has ended
	_ = os.RemoveAll(k.dir)
}
