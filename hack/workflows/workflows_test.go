// Package workflows_test verifies the files for GitHub: workflows, forms of issues, and updates of dependencies.
// actionlint, which make lint runs, verifies the syntax of workflows.
package workflows_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const github = "../../.github"

// files returns the files that match a pattern below .github, by their names.
func files(t *testing.T, pattern string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(github, pattern))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %d files: %v", pattern, len(paths), err)
	}
	all := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(path)] = string(text)
	}
	return all
}

// workflow has the fields of a workflow that limit its rights.
type workflow struct {
	Permissions any            `json:"permissions"`
	Concurrency any            `json:"concurrency"`
	Jobs        map[string]job `json:"jobs"`
}

type job struct {
	Uses        string `json:"uses"` // another workflow, in place of steps
	Permissions any    `json:"permissions"`
	Timeout     int    `json:"timeout-minutes"`
	Steps       []step `json:"steps"`
}

type step struct {
	Uses string         `json:"uses"`
	With map[string]any `json:"with"`
}

// unpinned returns the lines of a workflow with an action that is not pinned by a full digest with its version. A
// workflow of this repository is taken from the same commit.
func unpinned(text string) (lines []string) {
	pinned := regexp.MustCompile(`^uses: (\./\S+|[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$`)
	for line := range strings.Lines(text) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "- ")
		if strings.Contains(line, "uses:") && !strings.HasPrefix(line, "#") && !pinned.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// unlimited returns the limits that a workflow lacks.
func unlimited(w workflow) (problems []string) {
	report := func(missing bool, format string, args ...any) {
		if missing {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	report(w.Permissions == nil, "no permissions")
	report(w.Concurrency == nil, "no concurrency")
	report(len(w.Jobs) == 0, "no jobs")
	for _, name := range slices.Sorted(maps.Keys(w.Jobs)) {
		j := w.Jobs[name]
		report(j.Permissions == nil, "job %s: no permissions", name)
		report(j.Timeout == 0 && j.Uses == "", "job %s: no timeout-minutes", name)
		for _, s := range j.Steps {
			checkout := strings.HasPrefix(s.Uses, "actions/checkout@")
			persists := checkout && s.With["persist-credentials"] != false
			report(persists, "job %s: checkout without persist-credentials: false", name)
		}
	}
	return problems
}

func TestActionsArePinnedByDigest(t *testing.T) {
	for name, text := range files(t, "workflows/*.yaml") {
		for _, line := range unpinned(text) {
			t.Errorf("%s: %s: want a digest of 40 digits, and the version as a comment: # v1.2.3", name, line)
		}
	}
}

func TestWorkflowsLimitWhatTheyCanDo(t *testing.T) {
	for name, text := range files(t, "workflows/*.yaml") {
		var w workflow
		if err := yaml.Unmarshal([]byte(text), &w); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, problem := range unlimited(w) {
			t.Errorf("%s: %s", name, problem)
		}
	}
	if other, _ := filepath.Glob(filepath.Join(github, "workflows/*.yml")); len(other) > 0 {
		t.Errorf("%v: want the extension .yaml, which this test reads", other)
	}
}
