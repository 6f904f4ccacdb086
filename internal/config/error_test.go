package config

import (
	"bufio"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the golden files")

// Each file in testdata/errors is invalid; the .txt beside it has the messages. A first line "# args:" has the flags.
func TestErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			text := read(t, filepath.Join("errors", name))
			_, _, err := load(t, text, arguments(text)...)
			if err == nil {
				t.Fatal("no error")
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", err.Error()+"\n")
		})
	}
}

func arguments(text string) []string {
	first := bufio.NewScanner(strings.NewReader(text))
	first.Scan()
	args, _ := strings.CutPrefix(first.Text(), "# args: ")
	if args == first.Text() {
		return nil
	}
	return strings.Fields(args)
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Callers may look at the problems one by one.
func TestInvalidError(t *testing.T) {
	_, _, err := load(t, header+"\noomScoreAdj: 1001", "--conntrack-min=x")
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("error %v", err)
	}
	want := []Problem{
		{Field: "--conntrack-min", Reason: `Invalid value: "x": must be a whole number`},
		{
			Field: "KubeProxyConfiguration.oomScoreAdj", File: "config.yaml", Line: 4,
			Reason: "Invalid value: 1001: must be -1000 to 1000",
		},
	}
	if diff := cmp.Diff(want, invalid.Problems); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// An error about the host is part of the message.
func TestEnv(t *testing.T) {
	broken := errors.New("broken")
	for _, tc := range []struct {
		name, args string
		host       string
		hostErr    error
		want       string
	}{
		{"no file", "--config=gone", "h", nil, "read --config: file does not exist"},
		{
			"no hostname", "", "", broken,
			"configuration: KubeProxyConfiguration.hostnameOverride: Required value: cannot read the hostname: broken",
		},
		{
			"empty hostname", "", " ", nil,
			"configuration: KubeProxyConfiguration.hostnameOverride: Required value: this host has no name",
		},
		{
			"spaces", "--hostname-override=\t", "h", nil,
			`configuration: --hostname-override: Invalid value: "\t": must not be only spaces`,
		},
		{"override helps", "--hostname-override=n", "", broken, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
			f := NewFlags(set)
			if err := set.Parse(strings.Split(tc.args, " ")); err != nil {
				t.Fatal(err)
			}
			_, _, err := f.Load(Env{
				Hostname: func() (string, error) { return tc.host, tc.hostErr },
				ReadFile: func(string) ([]byte, error) { return nil, fs.ErrNotExist },
			}, Options{Modes: []string{"nftables"}})
			if err == nil && tc.want == "" {
				return
			}
			if err == nil || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

// The version is printed even if the rest of the command line is invalid.
func TestVersionNeedsNoLoad(t *testing.T) {
	set := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	f := NewFlags(set)
	if err := set.Parse([]string{"--oom-score-adj=x", "--version"}); err != nil {
		t.Fatal(err)
	}
	if got := f.Version(); got != (Version{Print: "true"}) {
		t.Errorf("version %+v", got)
	}
}
