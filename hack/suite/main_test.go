package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// read reads the output of one step and returns everything printed.
func read(output string, ended error) (*summary, string) {
	var out bytes.Buffer
	s := newSummary(&out)
	r := newResults("unit", s)
	for line := range strings.Lines(output) {
		r.line(line)
	}
	r.end(ended)
	s.print()
	return s, out.String()
}

var errExit = errors.New("exit status 1")

func TestSummary(t *testing.T) {
	for _, tt := range []struct {
		name   string
		output string
		ended  error
		last   string
		says   []string
		not    []string
	}{
		{
			name:   "a step without tests counts by its exit status",
			output: "all is well\n",
			last:   "sluice: 1 passed, 0 failed, 0 skipped",
			says:   []string{"unit: all is well\n"},
		},
		{
			name:   "a step that fails",
			output: "main.go:1: bad\n",
			ended:  errExit,
			last:   "sluice: 0 passed, 1 failed, 0 skipped",
			says:   []string{"main.go:1: bad\n", "FAIL unit: exit status 1\n", "failed:\n  unit\n"},
		},
		{
			name: "what passes is quiet, what fails is shown",
			output: `{"Action":"run","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"    bad_test.go:7: got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestBad","Elapsed":0.1}
{"Action":"fail","Package":"p","Elapsed":0.3}
`,
			ended: errExit,
			last:  "sluice: 1 passed, 1 failed, 0 skipped",
			says: []string{
				"bad_test.go:7: got 1, want 2\n", "fail p (1 passed, 1 failed, 0 skipped) 0.3s\n",
				"   0.3 unit: p (1 passed, 1 failed, 0 skipped)\n", "failed:\n  p TestBad\n",
			},
			not: []string{"chatter", "=== RUN"},
		},
		{
			name: "subtests count, not what holds them",
			output: `{"Action":"pass","Package":"p","Test":"TestAll/one","Elapsed":0.1}
{"Action":"fail","Package":"p","Test":"TestAll/two","Elapsed":0.1}
{"Action":"fail","Package":"p","Test":"TestAll","Elapsed":0.2}
{"Action":"pass","Package":"p","Test":"TestFine/deep/one","Elapsed":0.1}
{"Action":"pass","Package":"p","Test":"TestFine/deep","Elapsed":0.1}
{"Action":"pass","Package":"p","Test":"TestFine","Elapsed":0.1}
{"Action":"fail","Package":"p","Elapsed":0.3}
`,
			ended: errExit,
			last:  "sluice: 2 passed, 1 failed, 0 skipped",
			says:  []string{"failed:\n  p TestAll/two\n"},
		},
		{
			name: "a test that fails after its subtests passed",
			output: `{"Action":"pass","Package":"p","Test":"TestAll/one","Elapsed":0.1}
{"Action":"fail","Package":"p","Test":"TestAll","Elapsed":0.2}
{"Action":"fail","Package":"p","Elapsed":0.3}
`,
			ended: errExit,
			last:  "sluice: 1 passed, 1 failed, 0 skipped",
			says:  []string{"failed:\n  p TestAll\n"},
		},
		{
			name: "reasons of skips are gathered",
			output: `{"Action":"output","Package":"p","Test":"TestA",` +
				`"Output":"    a_test.go:3: kernel has no SCTP: module sctp\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestB","Output":"    a_test.go:9: kernel has no SCTP: module sctp\n"}
{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"skip","Package":"p","Test":"TestC","Elapsed":0}
{"Action":"pass","Package":"p","Elapsed":0.3}
`,
			last: "sluice: 0 passed, 0 failed, 3 skipped",
			says: []string{"skipped:\n  2x kernel has no SCTP: module sctp\n  1x no reason given\n"},
		},
		{
			name: "a package that does not build",
			output: `{"Action":"build-output","ImportPath":"p","Output":"p/x.go:3:2: undefined: y\n"}
{"Action":"build-fail","ImportPath":"p"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p"}
`,
			ended: errExit,
			last:  "sluice: 0 passed, 1 failed, 0 skipped",
			says:  []string{"p/x.go:3:2: undefined: y\n", "[build failed]", "failed:\n  p\n"},
		},
		{
			name: "a test that never ended",
			output: `{"Action":"run","Package":"p","Test":"TestHang"}
{"Action":"output","Package":"p","Test":"TestHang","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"p","Elapsed":600}
`,
			ended: errExit,
			last:  "sluice: 0 passed, 1 failed, 0 skipped",
			says:  []string{"panic: test timed out\n"},
		},
		{
			name:   "packages without tests are not shown",
			output: `{"Action":"skip","Package":"p","Elapsed":0}` + "\n",
			last:   "sluice: 0 passed, 0 failed, 0 skipped",
			not:    []string{"skip p"},
		},
		{
			name: "slow tests are named, the slowest first",
			output: `{"Action":"pass","Package":"p","Test":"TestSlow","Elapsed":1.5}
{"Action":"pass","Package":"p","Test":"TestSlower","Elapsed":2.5}
{"Action":"pass","Package":"p","Test":"TestFast","Elapsed":0.5}
`,
			last: "sluice: 3 passed, 0 failed, 0 skipped",
			says: []string{"seconds of the slowest tests:\n     2.5 p TestSlower\n     1.5 p TestSlow\n"},
			not:  []string{"TestFast"},
		},
		{
			name: "what tests measure is gathered in tables",
			output: `{"Action":"attr","Package":"p","Test":"TestA","Key":"instructions-verified/b","Value":"12"}
{"Action":"attr","Package":"p","Test":"TestA","Key":"instructions-verified/a","Value":"1412"}
{"Action":"attr","Package":"p","Test":"TestA","Key":"instructions-verified/a","Value":"1412"}
{"Action":"attr","Package":"p","Test":"TestA","Key":"instructions-verified/a","Value":"1500"}
{"Action":"attr","Package":"p","Test":"TestA","Key":"owner","Value":"x"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.5}
`,
			last: "sluice: 1 passed, 0 failed, 0 skipped",
			says: []string{"\ninstructions verified:\n  1412, 1500 a\n        12 b\n"},
			not:  []string{"owner"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, out := read(tt.output, tt.ended)
			if !strings.HasSuffix(out, "\n"+tt.last+"\n") {
				t.Errorf("does not end with %q:\n%s", tt.last, out)
			}
			if (s.Failed > 0) != (tt.ended != nil) {
				t.Errorf("%d failed, the command ended with %v", s.Failed, tt.ended)
			}
			for _, want := range tt.says {
				if !strings.Contains(out, want) {
					t.Errorf("does not say %q:\n%s", want, out)
				}
			}
			for _, unwanted := range tt.not {
				if strings.Contains(out, unwanted) {
					t.Errorf("says %q:\n%s", unwanted, out)
				}
			}
		})
	}
}
