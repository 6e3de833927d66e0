"""What a drive leaves on the disk: schema of the run folder, the recorder, and the track of other actors."""
