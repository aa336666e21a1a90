package main

import (
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseStatCountsFieldsAfterTheName(t *testing.T) {
	got, err := parseStat([]byte("77 (a ) b) S 42 77 77 0 -1 4194560 100 0 0 0 150 50 300 100 20 0 1 0 12 0 0\n"))
	if err != nil {
		t.Fatal(err)
	}
	if want := (procStat{parent: 42, own: 2, reaped: 4}); got != want {
		t.Errorf("parseStat = %+v, want %+v", got, want)
	}
	if _, err := parseStat([]byte("77 (short) S")); err == nil {
		t.Error("parseStat accepts a line without times")
	}
}

func TestParseMemory(t *testing.T) {
	got := parseMemory("Name:\tx\nRssAnon:\t    1024 kB\nRssFile:\t       8 kB\nRssShmem:\t     16 kB\n")
	if want := (procMemory{anon: 1 << 20, file: 8 << 10, shared: 16 << 10}); got != want {
		t.Errorf("parseMemory = %+v, want %+v", got, want)
	}
}

func TestListenerOfFindsThisProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := listenerOf(l.Addr().(*net.TCPAddr).Port); got != os.Getpid() {
		t.Errorf("listenerOf = %d, want %d", got, os.Getpid())
	}
}

func TestVolumeSince(t *testing.T) {
	before := Volume{WAL: 10, Disk: 100, Tables: map[string]int64{"a": 5}, Indexes: map[string]int64{}}
	after := Volume{WAL: 30, Disk: 150, Tables: map[string]int64{"a": 7, "b": 4}, Indexes: map[string]int64{"i": 1}}
	want := Volume{WAL: 20, Disk: 50, Tables: map[string]int64{"a": 2, "b": 4}, Indexes: map[string]int64{"i": 1}}
	if diff := cmp.Diff(want, after.Since(before)); diff != "" {
		t.Error(diff)
	}
}
