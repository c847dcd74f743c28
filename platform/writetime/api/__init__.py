"""The Python interface of Writetime, for notebooks and scripts: `import writetime`."""
