package oauth

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// Contract, Authorization 6: a login's argon2id is bounded in parallel, so that sign-ins
// cannot use up the memory: while as many hash as may, the next one waits, and gives up
// with its request.
func TestHashersAreBounded(t *testing.T) {
	if bytes := hashers * argonMemory << 10; bytes > 128<<20 {
		t.Errorf("sign-ins may take %d bytes", bytes)
	}
	for range hashers {
		hashing <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := hashPassword(ctx, "correct horse battery")
	if _, more := passwordMatches(ctx, nobody, "x"); !errors.Is(err, context.Canceled) || !errors.Is(more, context.Canceled) {
		t.Errorf("beside %d others: %v, %v, want to wait", hashers, err, more)
	}
	for range hashers {
		<-hashing
	}
	hash, err := hashPassword(t.Context(), "correct horse battery")
	if err != nil || !strings.HasPrefix(hash, "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Errorf("%q, %v", hash, err)
	}
	for password, want := range map[string]bool{"correct horse battery": true, "correct horse batterx": false, "": false} {
		if got, err := passwordMatches(t.Context(), hash, password); got != want || err != nil {
			t.Errorf("%q: %v, %v", password, got, err)
		}
	}
	if got, err := passwordMatches(t.Context(), "no hash", "x"); got || err != nil {
		t.Errorf("against no hash: %v, %v", got, err)
	}
}
