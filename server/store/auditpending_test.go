package store_test

import (
	"context"
	"testing"

	"kiln/server/store"
)

// Settling waits for the AuditEvents of earlier writes only. Otherwise it would never end
// while others write.
func TestSettleEndsWhileOthersWrite(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	keep := func() {
		t.Helper()
		err := s.InTx(t.Context(), func(tx *store.Tx) error { return tx.KeepAudit(t.Context(), [][]byte{[]byte("event")}) })
		if err != nil {
			t.Fatal(err)
		}
	}
	const before = 3
	for range before {
		keep()
	}
	made := 0
	write := func([]byte) []*store.Write {
		if made++; made > 10*before {
			t.Fatal("it makes what is written meanwhile, and does not end")
		}
		keep() // somebody writes meanwhile
		return nil
	}
	if err := s.SettleAuditOfWrites(context.Background(), write); err != nil || made != before {
		t.Errorf("%d made, %v; want the %d from before", made, err, before)
	}
	if found, err := s.WriteAuditOfWrites(t.Context(), func([]byte) []*store.Write { made++; return nil }); err != nil || !found || made != 2*before {
		t.Errorf("found %v, %v, %d made in all; want the later ones too", found, err, made)
	}
}
