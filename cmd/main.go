// Command kiln is the server and everything around it: one command a file.
// Flags, environment and configuration files are read here and nowhere else.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	var told told
	switch {
	case err == nil:
	case errors.As(err, &told):
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, "kiln:", err)
		os.Exit(1)
	}
}

// told is a failure that the user has read of already.
type told struct{ error }
