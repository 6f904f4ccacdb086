package convert

import "testing"

func TestSelector(t *testing.T) {
	const labels = "app.kubernetes.io/name=web,empty=,tier=front"
	for selector, want := range map[string]bool{
		"": true, "tier=front": true, "tier==front,app.kubernetes.io/name": true, "tier in (front, back)": true,
		"empty": true, "empty=": true, "!missing": true, "tier!=back": true,
		"tier=back": false, "missing": false, "!tier": false, "tier notin (front)": false, "front": false,
	} {
		selects, err := Selector(selector)
		if err != nil {
			t.Fatal(err)
		}
		if got := selects(labels); got != want {
			t.Errorf("%q selects %s: %t, want %t", selector, labels, got, want)
		}
	}
	if selects, err := Selector("!tier"); err != nil || !selects("") {
		t.Errorf("a Service without labels: %v", err)
	}
	if _, err := Selector("a b"); err == nil {
		t.Error("an invalid selector is accepted")
	}
}
