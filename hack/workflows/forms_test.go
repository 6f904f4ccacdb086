package workflows_test

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// form is a form of an issue (docs.github.com, "Syntax for issue forms").
type form struct {
	Name        string    `json:"name"`
	Description string    `json:"description"`
	Title       string    `json:"title"`
	Labels      []string  `json:"labels"`
	Body        []element `json:"body"`
}

type element struct {
	Type        string         `json:"type"`
	ID          string         `json:"id"`
	Attributes  map[string]any `json:"attributes"`
	Validations map[string]any `json:"validations"`
}

// problemsOf returns why GitHub would not show a form.
func problemsOf(text string) (problems []string) {
	var f form
	if err := yaml.UnmarshalStrict([]byte(text), &f); err != nil {
		return []string{err.Error()}
	}
	if f.Name == "" || f.Description == "" {
		problems = append(problems, "no name or no description")
	}
	ids := map[string]bool{}
	for i, e := range f.Body {
		needed := map[string]string{
			"markdown": "value", "input": "label", "textarea": "label",
			"dropdown": "label options", "checkboxes": "label options",
		}[e.Type]
		if needed == "" {
			problems = append(problems, fmt.Sprintf("element %d: type %q", i, e.Type))
		}
		for name := range strings.FieldsSeq(needed) {
			if e.Attributes[name] == nil || e.Attributes[name] == "" {
				problems = append(problems, fmt.Sprintf("element %d: no %s", i, name))
			}
		}
		if e.Type == "markdown" {
			continue
		}
		if e.ID == "" || ids[e.ID] {
			problems = append(problems, fmt.Sprintf("element %d: id %q, want one of its own", i, e.ID))
		}
		ids[e.ID] = true
	}
	if len(ids) == 0 {
		problems = append(problems, "no field")
	}
	return problems
}

func TestFormsHaveTheFieldsThatGitHubNeeds(t *testing.T) {
	forms := files(t, "ISSUE_TEMPLATE/*.yml")
	for _, name := range []string{"bug.yml", "feature.yml"} {
		if forms[name] == "" {
			t.Errorf("there is no %s", name)
		}
	}
	for name, text := range forms {
		if name == "config.yml" {
			continue
		}
		for _, problem := range problemsOf(text) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

func TestNewIssuesLeadToTheSecurityPolicy(t *testing.T) {
	var config struct {
		Blank *bool `json:"blank_issues_enabled"`
		Links []struct {
			Name  string `json:"name"`
			URL   string `json:"url"`
			About string `json:"about"`
		} `json:"contact_links"`
	}
	text := files(t, "ISSUE_TEMPLATE/config.yml")["config.yml"]
	if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	if config.Blank == nil || *config.Blank {
		t.Error("blank issues are not disabled")
	}
	policy := false
	for _, link := range config.Links {
		if link.Name == "" || link.About == "" || !strings.HasPrefix(link.URL, "https://") {
			t.Errorf("link %+v: want name, url and about", link)
		}
		policy = policy || strings.HasSuffix(link.URL, "/SECURITY.md")
	}
	if !policy {
		t.Errorf("no link to SECURITY.md in %+v", config.Links)
	}
}
