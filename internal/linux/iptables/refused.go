package iptables

import (
	"regexp"
	"strconv"
	"strings"
)

// refused returns the error of input that PROGRAM-restore refused, given its output to stderr. The form depends on the
// variant, on whether the program or the kernel found the mistake, and on whether that was at once or at the COMMIT:
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
	names := regexp.MustCompile(`^(\S+-restore[^:]*: *)+`)
	position := regexp.MustCompile(`^(?:Error occurred at line:|line) *(\d+)(?: failed)?:? *`)
	var reasons []string
	for line := range strings.Lines(stderr) {
		line = names.ReplaceAllString(strings.TrimSpace(line), "")
		if m := position.FindStringSubmatch(line); m != nil {
			line = strings.TrimPrefix(line, m[0])
			if e.Line == 0 {
				e.Line, _ = strconv.Atoi(m[1]) // digits
			}
		}
		if line != "" && !strings.HasPrefix(line, "Try `") {
			reasons = append(reasons, line)
		}
	}
	e.Reason = strings.Join(reasons, "; ")
	if e.Reason == "" {
		e.Reason = "refused without a reason"
	}
	lines := strings.Split(input, "\n")
	for i, line := range lines[:min(e.Line, len(lines))] {
		switch {
		case i+1 == e.Line && line != "COMMIT": // a COMMIT says only that a line before it is wrong
			e.Rule = line
		case i+1 < e.Line && line == "COMMIT":
			e.Committed++
		}
	}
	return e
}
