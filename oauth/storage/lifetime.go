package storage

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// maxLifetime bounds every lifetime: a hundred years.
const maxLifetime = 36500 * 24 * time.Hour

// ParseLifetime reads a lifetime such as 1s, 10m, 1h or 90d: whole numbers and
// units, the largest first where there are several. "" is 0.
func ParseLifetime(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	malformed := fmt.Errorf("%q is no lifetime: expected a number and a unit, such as 30s, 10m, 1h or 90d", text)
	var total time.Duration
	rest := text
	if days, after, ok := strings.Cut(rest, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, malformed
		}
		total, rest = time.Duration(n)*24*time.Hour, after
	}
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || strings.ContainsAny(rest, "+-.µun") {
			return 0, malformed
		}
		total += d
	}
	if total <= 0 || total > maxLifetime {
		return 0, malformed
	}
	return total, nil
}
