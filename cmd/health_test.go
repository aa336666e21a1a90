package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"kiln/server/store/storetest"
)

// systemd learns that the server is ready, and that it stops; kiln health asks the server.
// Contract, Operations: Deploy.
func TestReadyIsTold(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	next := func() string {
		t.Helper()
		if err := l.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n, err := l.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	address := freeAddress(t)
	environment := []string{"KILN_DATABASE__URL=" + storetest.New(t), "KILN_SERVER__LISTEN=" + address}
	if out, err := runKiln(t, environment, "health"); err == nil || !strings.Contains(out, "no server answers at "+address) {
		t.Errorf("health without a server: %v %s", err, out)
	}
	c := exec.Command(os.Args[0], "serve")
	c.Dir, c.Env = t.TempDir(), append(append(os.Environ(), "RUN_AS_KILN=1", "NOTIFY_SOCKET="+socket), environment...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	defer func() { _ = c.Process.Kill() }()
	if got := next(); got != "READY=1" {
		t.Fatalf("the first message is %q", got)
	}
	if out, err := runKiln(t, environment, "health"); err != nil || !strings.Contains(out, `"ok"`) {
		t.Errorf("health: %v %s", err, out)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := next(); got != "STOPPING=1" {
		t.Errorf("the second message is %q", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
