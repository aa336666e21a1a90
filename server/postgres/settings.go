package postgres

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// configure writes kiln.conf and includes it at the end of postgresql.conf.
func (s *Server) configure(ctx context.Context, dir string) error {
	conf := filepath.Join(dir, "kiln.conf")
	if err := os.WriteFile(conf, []byte(s.settings(ctx, dir)), 0o600); err != nil {
		return err
	}
	if err := s.account.own(conf); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteString("\ninclude 'kiln.conf'\n# Settings below this line win over those of kiln.conf.\n"); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// settings are for a database that shares a small machine with its server.
func (s *Server) settings(ctx context.Context, dir string) string {
	const mb = 1 << 20
	memory := physicalMemory()
	buffers := min(max(memory/8, 128*mb), 4096*mb)
	walCompression, toast := "on", "pglz"
	if s.accepts(ctx, dir, "wal_compression=lz4") {
		walCompression, toast = "lz4", "lz4"
	}
	// With a quarter of the memory for buffers an import among 25 million resources goes at 1.4 times the
	// pace, and searches beside writes at two thirds of it: most pages are kept twice.
	var b strings.Builder
	for _, line := range []string{
		"# Written once by kiln. Change settings in postgresql.conf, below its include of this file.",
		"# Durable: a commit that is acknowledged is on disk.",
		"fsync = on",
		"synchronous_commit = on",
		"full_page_writes = on",
		"# Memory: an eighth of the machine, at most 4 GB; the system's cache has the rest.",
		fmt.Sprintf("shared_buffers = %dMB", buffers/mb),
		fmt.Sprintf("effective_cache_size = %dMB", max(memory/2, 256*mb)/mb),
		"work_mem = 16MB",
		"maintenance_work_mem = 128MB",
		"# Few checkpoints: each makes the next change of every page log the whole page. With 2 GB an",
		"# import among 14 million resources logged 300,000 in 20 seconds, and came to the next checkpoint.",
		"max_wal_size = 8GB",
		"min_wal_size = 512MB",
		"checkpoint_timeout = 15min",
		"wal_compression = " + walCompression,
		"default_toast_compression = " + toast,
		"wal_level = replica",
		"max_wal_senders = 0",
		"# A bundle with many conditional entries takes a lock for each.",
		"max_locks_per_transaction = 256",
		"# Transactions that block each other are run again, so find out soon.",
		"deadlock_timeout = 200ms",
		"random_page_cost = 1.1",
		"jit = off",
		"autovacuum_naptime = 20s",
		"log_min_messages = warning",
		"log_checkpoints = off",
		"log_timezone = UTC",
		"timezone = UTC",
	} {
		b.WriteString(line + "\n")
	}
	return b.String()
}

// accepts reports whether these binaries know a setting's value.
func (s *Server) accepts(ctx context.Context, dir, setting string) bool {
	name, _, _ := strings.Cut(setting, "=")
	cmd := exec.CommandContext(ctx, filepath.Join(s.binDir, "postgres"), "-D", dir, "-c", setting, "-C", name)
	s.account.apply(cmd, filepath.Dir(s.dir))
	return cmd.Run() == nil
}
