package rest

import (
	"context"
	"testing"
)

func TestBodyLimit(t *testing.T) {
	g := newBodyLimit()
	ctx, cancel := context.WithCancel(t.Context())
	leave, err := g.enterBody(ctx, 10*limitBytes) // alone, and takes all the room
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.enterBody(ctx, smallBody); err != nil {
		t.Errorf("a small body waits: %v", err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := g.enterBody(ctx, smallBody+1)
		second <- err
	}()
	cancel()
	if err := <-second; err == nil {
		t.Error("a second large body passes while the first has all the room")
	}
	leave()
	leave, err = g.enterBody(context.Background(), -1)
	if err != nil {
		t.Fatalf("room that was given back is not there: %v", err)
	}
	leave()
}
