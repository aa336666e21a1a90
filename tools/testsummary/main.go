// Command testsummary reads the output of go test -json and prints it as go test does. At the end
// it prints how many tests were skipped, and why.
//
//	go test -json ./... | go run ./testsummary
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if err := summarize(os.Stdin, os.Stdout, slices.Contains(os.Args[1:], "-v")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// event is a line of go test -json. See go doc test2json.
type event struct {
	Action, Package, Test, Output string
}

// noise are lines that go test prints with -v only.
var noise = regexp.MustCompile(`^(=== (RUN|PAUSE|CONT|NAME|ATTR)\b|\s*--- (PASS|SKIP): |PASS\n$)`)

// position is the place in the source that a message of a test begins with.
var position = regexp.MustCompile(`^\s+\S+\.go:\d+: `)

// summarize prints the events of in, all of their output if verbose.
func summarize(in io.Reader, out io.Writer, verbose bool) error {
	type test struct{ pkg, name string }
	output := make(map[test][]string)
	skipped := make(map[string][]string) // reason to tests
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil { // of go itself
				if _, err := out.Write(line); err != nil {
					return err
				}
				continue
			}
			t := test{e.Package, e.Test}
			switch {
			case e.Action == "output" && e.Test != "" && !verbose:
				output[t] = append(output[t], e.Output)
			case e.Action == "output" && (verbose || !noise.MatchString(e.Output)), e.Action == "build-output":
				fmt.Fprint(out, e.Output)
			}
			if e.Action == "output" && verbose && e.Test != "" {
				output[t] = append(output[t], e.Output)
			}
			switch {
			case e.Test == "":
			case e.Action == "fail" && !verbose:
				for _, text := range output[t] {
					if !noise.MatchString(text) {
						fmt.Fprint(out, text)
					}
				}
			case e.Action == "skip":
				why := reason(output[t])
				skipped[why] = append(skipped[why], strings.TrimPrefix(e.Package, "kiln/")+" "+e.Test)
			}
			if e.Action == "pass" || e.Action == "fail" || e.Action == "skip" {
				delete(output, t)
			}
		}
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
	}
	for t, texts := range output { // of a program that has crashed
		if t.name != "" && !verbose {
			fmt.Fprint(out, strings.Join(texts, ""))
		}
	}
	count := 0
	for _, tests := range skipped {
		count += len(tests)
	}
	switch count {
	case 0:
		fmt.Fprintln(out, "no test was skipped")
		return nil
	case 1:
		fmt.Fprintln(out, "1 test was skipped:")
	default:
		fmt.Fprintf(out, "%d tests were skipped:\n", count)
	}
	for _, why := range slices.SortedFunc(maps.Keys(skipped), func(a, b string) int {
		return cmp.Or(len(skipped[b])-len(skipped[a]), strings.Compare(a, b))
	}) {
		fmt.Fprintf(out, "%5d  %s\n", len(skipped[why]), why)
		for _, name := range skipped[why] {
			fmt.Fprintf(out, "         %s\n", name)
		}
	}
	return nil
}

// reason is the message that a skipped test ended with.
func reason(output []string) string {
	var lines []string
	for _, text := range output {
		if !noise.MatchString(text) {
			lines = append(lines, strings.TrimSpace(position.ReplaceAllString(text, "")))
		}
	}
	if len(lines) == 0 {
		return "no reason is given"
	}
	return lines[len(lines)-1]
}
