package postgres

import (
	"context"
	"errors"
	"hash/fnv"
	"os"
	"syscall"
	"time"
)

// lockFile takes an exclusive lock, held until the file is closed.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, err
		}
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			f.Close()
			return nil, err
		}
	}
}

func pathHash(path string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(path))
	return h.Sum64()
}
