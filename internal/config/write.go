package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// Effective returns the configuration in force, defaults and flags included, as
// a KubeProxyConfiguration v1alpha1 in JSON.
func (c *Config) Effective() []byte {
	text, _ := yaml.YAMLToJSON(c.effective) // Load wrote it
	return text
}

// Write writes the configuration in force to WriteConfigTo. It replaces a file as a whole, so that no reader sees half
// of one, and writes to a device, pipe or link directly.
func (c *Config) Write() error {
	info, err := os.Lstat(c.WriteConfigTo)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular():
		err = replace(c.WriteConfigTo, c.effective)
	case err == nil:
		err = os.WriteFile(c.WriteConfigTo, c.effective, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

func replace(name string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), ".sluice-config-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
