"""What people bring along: servers of tools and languages, skills, hooks, commands, agents."""
