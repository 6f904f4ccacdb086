package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/spf13/pflag"
)

// Each file in testdata/units has the command line of a unit file or manifest that is in use, and its configuration
// file if it names one. It loads without an error; the section "warnings" lists the warnings.
func TestUnitFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/units/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			unit, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(unitWarnings(t, section(unit, "args"), section(unit, "config.yaml")), "\n")
			if got != "" {
				got += "\n"
			}
			if *update {
				writeWarnings(t, file, unit, got)
			}
			if diff := cmp.Diff(section(unit, "warnings"), got); diff != "" && !*update {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func section(unit *txtar.Archive, name string) string {
	for _, f := range unit.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

// unitWarnings loads a command line, whatever path it has for the configuration file.
func unitWarnings(t *testing.T, args, file string) []string {
	t.Helper()
	set := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	flags := NewFlags(set)
	if err := set.Parse(strings.Fields(strings.ReplaceAll(args, `""`, ""))); err != nil {
		t.Fatal(err)
	}
	_, warnings, err := flags.Load(Env{
		Hostname: func() (string, error) { return "node-a", nil },
		ReadFile: func(string) ([]byte, error) { return []byte(file), nil },
	}, Options{Modes: []string{"nftables", "iptables"}})
	if err != nil {
		t.Fatal(err)
	}
	return warnings
}

func writeWarnings(t *testing.T, file string, unit *txtar.Archive, text string) {
	t.Helper()
	var files []txtar.File
	for _, f := range unit.Files {
		if f.Name != "warnings" {
			files = append(files, f)
		}
	}
	if text != "" {
		files = append(files, txtar.File{Name: "warnings", Data: []byte(text)})
	}
	unit.Files = files
	if err := os.WriteFile(file, txtar.Format(unit), 0o644); err != nil {
		t.Fatal(err)
	}
}
