package bulk

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"kiln/server/outcome"
)

// Storage keeps the files of jobs. Paths begin with the id of the job and a slash.
type Storage interface {
	// Create makes a file. Close makes it whole; after Abort nothing of it is left.
	Create(ctx context.Context, path string) (Writer, error)
	// Open opens a file to be read from any place.
	Open(ctx context.Context, path string) (io.ReadSeekCloser, error)
	// Remove deletes a file.
	Remove(ctx context.Context, path string) error
	// Jobs lists the ids of the jobs that have files, all of which are older than age.
	Jobs(ctx context.Context, age time.Duration) ([]string, error)
	// RemoveJob deletes the files of a job.
	RemoveJob(ctx context.Context, job string) error
	// SignedURL is a URL from which anybody can read a file for a time, "" where there are none.
	SignedURL(ctx context.Context, path, contentType string) (string, error)
	// Mark returns the random name of this storage. It makes one where there is none.
	Mark(ctx context.Context) (string, error)
}

// Writer is a file that is being written.
type Writer interface {
	io.Writer
	Close() error
	Abort()
}

// directory is a Storage in a folder.
type directory struct{ root string }

// Directory returns the storage in a folder, which is made where it is missing.
func Directory(root string) Storage { return &directory{root} }

// diskFull makes of a full disk an error that fails the job: another attempt finds it full too.
func diskFull(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return outcome.New(outcome.CodeNoStore, "the disk of bulk.directory is full").Because(err)
	}
	return err
}

type directoryFile struct{ *os.File }

func (f directoryFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	return n, diskFull(err)
}

func (f directoryFile) Close() error {
	err := f.Sync()
	return diskFull(errors.Join(err, f.File.Close()))
}

func (f directoryFile) Abort() {
	f.File.Close()
	os.Remove(f.Name())
}

func (d *directory) Create(_ context.Context, path string) (Writer, error) {
	full := filepath.Join(d.root, filepath.FromSlash(path))
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		return nil, diskFull(err)
	}
	f, err := os.OpenFile(full, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, diskFull(err)
	}
	return directoryFile{f}, nil
}

func (d *directory) Open(_ context.Context, path string) (io.ReadSeekCloser, error) {
	return os.Open(filepath.Join(d.root, filepath.FromSlash(path)))
}

func (d *directory) RemoveJob(_ context.Context, job string) error {
	if job == "" || strings.ContainsAny(job, `/\.`) {
		return fmt.Errorf("bulk: %q is not the id of a job", job)
	}
	return os.RemoveAll(filepath.Join(d.root, job))
}

func (d *directory) Remove(_ context.Context, path string) error {
	err := os.Remove(filepath.Join(d.root, filepath.FromSlash(path)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (d *directory) Jobs(_ context.Context, age time.Duration) ([]string, error) {
	entries, err := os.ReadDir(d.root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		// A folder changes when a file is added to it.
		if info, err := e.Info(); err == nil && e.IsDir() && time.Since(info.ModTime()) > age {
			out = append(out, e.Name())
		}
	}
	return out, err
}

func (d *directory) SignedURL(context.Context, string, string) (string, error) { return "", nil }

// markFile has the mark of a folder.
const markFile = ".kiln-bulk"

func (d *directory) Mark(context.Context) (string, error) {
	if err := os.MkdirAll(d.root, 0o700); err != nil {
		return "", fmt.Errorf("bulk.directory: %w", err)
	}
	name := filepath.Join(d.root, markFile)
	for {
		text, err := os.ReadFile(name)
		if err == nil && len(text) > 0 {
			return string(text), nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		var random [16]byte
		rand.Read(random[:])
		temporary := name + "-" + hex.EncodeToString(random[:4])
		if err := os.WriteFile(temporary, []byte(hex.EncodeToString(random[:])), 0o600); err != nil {
			return "", err
		}
		err = os.Link(temporary, name) // fails where another server was first
		os.Remove(temporary)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		time.Sleep(time.Millisecond)
	}
}
