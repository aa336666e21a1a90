package outcome

import "strings"

// Nearest returns the name that is most like what came, or "" when none is near.
func Nearest(came string, names []string) string {
	best, bestDistance := "", 1+max(2, len(came)/2)
	for _, n := range names {
		d := distance(strings.ToLower(came), strings.ToLower(n), bestDistance)
		if strings.HasPrefix(strings.ToLower(n), strings.ToLower(came)) && len(came) >= 3 {
			d = min(d, 2)
		}
		if d < bestDistance {
			best, bestDistance = n, d
		}
	}
	return best
}

// DidYouMean returns `, did you mean "x"?` with the name nearest to what came, or
// "" when none is near.
func DidYouMean(came string, names []string) string {
	if best := Nearest(came, names); best != "" {
		return `, did you mean "` + best + `"?`
	}
	return ""
}

// distance is the Levenshtein distance of a and b, or limit when it is at least
// that.
func distance(a, b string, limit int) int {
	if len(a) > 64 || len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return min(row[len(b)], limit)
}

// Within reports whether a and b differ by at most n letters.
func Within(n int, a, b string) bool { return distance(a, b, n+1) <= n }
