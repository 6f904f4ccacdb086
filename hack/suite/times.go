package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// times are the durations of the last runs: of a run by its title, of a step by "TITLE: STEP", of a package by
// "STEP PACKAGE".
type times struct {
	path  string
	known map[string]time.Duration
}

// readTimes reads the durations from a file, which may not exist yet.
func readTimes(path string) (*times, error) {
	t := &times{path: path, known: map[string]time.Duration{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the durations of earlier runs: %w", err)
	}
	if json.Unmarshal(text, &t.known) != nil {
		t.known = map[string]time.Duration{} // only estimates are lost
	}
	return t, nil
}

// write replaces the file at once, so that concurrent runs leave a whole one.
func (t *times) write() error {
	text, err := json.MarshalIndent(t.known, "", "\t")
	if err != nil {
		return fmt.Errorf("encode durations: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(t.path), 0o755); err != nil {
		return fmt.Errorf("write durations: %w", err)
	}
	temp := fmt.Sprintf("%s.%d", t.path, os.Getpid())
	if err := os.WriteFile(temp, text, 0o644); err != nil {
		return fmt.Errorf("write durations: %w", err)
	}
	return os.Rename(temp, t.path)
}
