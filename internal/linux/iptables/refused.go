package iptables

import (
	"strconv"
	"strings"
)

// refused returns the error of input that PROGRAM-restore refused, given its output to
// stderr. The form depends on the variant, on whether the program or the kernel found the
// mistake, and on whether that was at once or at the COMMIT:
//
//	iptables-restore v1.8.9 (legacy): unknown option "--bad"
//	Error occurred at line: 4
//
//	iptables-nft-restore v1.8.9 (nf_tables):
//	line 5: CHAIN_DEL failed (Device or resource busy): chain KUBE-SVC-X
//
//	iptables-restore: line 4 failed
func refused(program, input, stderr string) *RestoreError {
	e := &RestoreError{Program: program}
	var reasons []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "Try `") {
			continue
		}
		line = withoutProgram(line)
		number, rest, ok := lineNumber(line)
		if ok && e.Line == 0 {
			e.Line = number
		}
		if ok {
			line = rest
		}
		if line != "" {
			reasons = append(reasons, line)
		}
	}
	e.Reason = strings.Join(reasons, "; ")
	if e.Reason == "" {
		e.Reason = "refused without a reason"
	}
	e.Committed = committed(input, e.Line)
	e.find(input)
	return e
}

// committed counts the COMMITs before a line of input.
func committed(input string, line int) int {
	n := 0
	_ = commands(input, func(c command) error { // it returns no error
		if c.verb == "COMMIT" && c.line < line {
			n++
		}
		return nil
	})
	return n
}

// withoutProgram cuts off the name and version with which most lines begin.
func withoutProgram(line string) string {
	for {
		first, rest, ok := strings.Cut(line, ":")
		words := strings.Fields(first)
		if !ok || len(words) == 0 || !strings.HasSuffix(words[0], "-restore") {
			return line
		}
		line = strings.TrimSpace(rest)
	}
}

// lineNumber reads "line 4 failed: REASON", "line 4: REASON" and "Error occurred
// at line: 4".
func lineNumber(line string) (number int, rest string, ok bool) {
	after, found := strings.CutPrefix(line, "Error occurred at line:")
	if !found {
		after, found = strings.CutPrefix(line, "line ")
	}
	if !found {
		return 0, line, false
	}
	after = strings.TrimSpace(after)
	digits := len(after) - len(strings.TrimLeft(after, "0123456789"))
	number, err := strconv.Atoi(after[:digits])
	if err != nil {
		return 0, line, false
	}
	rest = strings.TrimSpace(after[digits:])
	rest = strings.TrimSpace(strings.TrimPrefix(rest, "failed:"))
	rest = strings.TrimSpace(strings.TrimPrefix(rest, ":"))
	if rest == "failed" {
		rest = ""
	}
	return number, rest, true
}

// find sets the rule. If the line is a COMMIT, some line before it is wrong; if the reason
// names a missing chain, it is the first line that jumps to that chain.
func (e *RestoreError) find(input string) {
	e.Rule = lineOf(input, e.Line)
	if e.Rule != "COMMIT" {
		return
	}
	commit := e.Line
	e.Line, e.Rule = 0, ""
	_, after, ok := strings.Cut(e.Reason, "Chain '")
	missing, _, ok2 := strings.Cut(after, "'")
	if !ok || !ok2 {
		return
	}
	_ = commands(input, func(c command) error { // it returns no error
		switch {
		case c.line > commit:
		case c.verb == "*":
			e.Line = 0
		case e.Line == 0 && Target(c.rest) == missing:
			e.Line = c.line
		}
		return nil
	})
	e.Rule = lineOf(input, e.Line)
}
